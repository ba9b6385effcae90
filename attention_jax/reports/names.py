"""What settings, and groups of them, are called, by what they override; and a run, by its command."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attention_jax.reports.page import show

MOST_KEYS = 2  # that every name says
AS_CONFIGURED = "as configured"
CONFIG = re.compile(r"^--?config[=\n](?:[^:\n]*/)?([^:/\n]+)\.py(:.*)?$", re.MULTILINE)  # among words, one a line


def names_of(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each setting's overrides, another for each: as short as tells them apart.

    What it sets, with the keys unless each has one text alone. Of many keys, what more than half of the settings have
    goes without saying; what has nothing else is its values.
    """
    keys = differing(settings)
    whole = ([_with_keys(one, keys, keys, say) or AS_CONFIGURED for one in settings] for say in (show, repr))
    ways = _short_names(settings, keys), *whole
    apart = len({repr([one.get(key) for key in keys]) for one in settings})
    return next((names for names in ways if len({*names}) == apart), ways[-1])


def _short_names(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    values = [[value for key, value in one.items() if key in keys] for one in settings]
    if all(all(isinstance(value, str) and value == one[0] for value in one) for one in values):
        return [next((str(one[key]) for key in keys if key in one), "") or AS_CONFIGURED for one in settings]
    usual = {key: _usual(settings, key) for key in keys} if len(keys) > MOST_KEYS else {}
    own = [[key for key in keys if key not in usual or repr(one.get(key)) != usual[key]] for one in settings]
    return [
        _with_keys(one, named, keys, show) or ", ".join(show(one[key]) for key in keys if key in one) or AS_CONFIGURED
        for one, named in zip(settings, own, strict=True)
    ]


def _usual(settings: Sequence[Mapping[str, Any]], key: str) -> str:
    """What more than half of the settings have for a key, as text; "" where there is no such value."""
    (value, count), *_ = Counter(repr(one.get(key)) for one in settings).most_common(1)
    return value if 2 * count > len(settings) else ""


def name_of_group(values: Mapping[str, Any]) -> str:
    """What settings are compared within: the value of its one key, or each value with its key."""
    if len(values) == 1:
        return str(next(iter(values.values())))
    return _with_keys(values, list(values), list(values), str)


def short_keys(settings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The keys in which settings' overrides differ, each with as much of it as tells it from the others."""
    keys = differing(settings)
    return {key: _short(key, keys) for key in keys}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that differ between overrides; the first key where none does."""
    keys = list(dict.fromkeys(key for overrides in settings for key in overrides))
    return [key for key in keys if len({repr(overrides.get(key)) for overrides in settings}) > 1] or keys[:1]


def _short(key: str, keys: Sequence[str]) -> str:
    """A key's last part, or as much of it as tells it from the others."""
    parts = key.removesuffix(".name").split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[-count:])
        if sum(f".{other.removesuffix('.name')}".endswith(f".{name}") for other in keys) == 1:
            return name
    return key


def _with_keys(
    overrides: Mapping[str, Any], named: Sequence[str], keys: Sequence[str], say: Callable[[Any], str]
) -> str:
    """The values of the keys that are named, each with as much of its key as tells it from all keys."""
    return ", ".join(f"{_short(key, keys)} {say(overrides[key])}" for key in named if key in overrides)


def name_of_run(result: Mapping[str, Any]) -> str:
    """What a run is of: its config's file and variant, as `nmt:bahdanau,embedded`; of another start, its experiment."""
    named = CONFIG.findall("\n".join(shlex.split(result.get("command", ""))))
    return "".join(named[-1]) if named else result["experiment"]
