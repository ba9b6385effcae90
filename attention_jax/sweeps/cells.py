"""Cells: overrides resolved against a config, checked all before anything runs, and named by what makes their numbers.

A config is seen here as a flat dict, `{"optimizer.learning_rate": 0.001, …}`.
"""

import ast
import difflib
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.runs.config import flatten, nested
from attention_jax.runs.folder import WHERE
from attention_jax.runs.keys import meant
from attention_jax.sweeps.settings import without_settings
from attention_jax.sweeps.space import Overrides

VARIANT = "variant"  # the one key of overrides that is not the config's: it chooses the config
DIGITS = 12
READ = ("data", "run", "runs")  # sections and keys of a config that name what is read: data, or finished runs
START = "train.init_from"  # and the run that training starts from


class Cell(NamedTuple):
    """One run of a sweep: what was overridden, everything that it is made of, and the name that follows."""

    name: str
    overrides: Overrides
    config: dict[str, Any]  # flat
    data: str = ""  # a digest of what it reads; "": nothing


def resolve(
    space: Sequence[Overrides],
    configure: Callable[[str], ConfigDict],
    identify: Callable[[ConfigDict], str],
    code: Callable[[], str],
    adjust: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda configs: configs,
) -> list[Cell]:
    """Every cell, each once. `configure` gives a variant's config ("": the one asked for); `identify` tells its data.

    `adjust` checks the configs and may change values; a change counts as an override. Only then is `code` asked for its
    version, and are data identified.
    Raises UserError for an empty space, a key that the config does not have (with the nearest), or a value of
    another type, before anything runs.
    """
    if not space:
        raise UserError("sweep: the space is empty: there is no cell to run.")
    variants = {overrides.get(VARIANT, "") for overrides in space}
    bases = {variant: _Base(configure(variant)) for variant in sorted(variants)}
    asked = [bases[overrides.get(VARIANT, "")].with_(overrides) for overrides in space]
    found: dict[str, Cell] = {}
    adjusted, version = adjust(asked), code()
    for overrides, before, config in zip(space, asked, adjusted, strict=True):
        changed = {key: value for key, value in config.items() if before[key] != value}
        identity = bases[overrides.get(VARIANT, "")].identity(config, identify)
        named = {key: value for key, value in config.items() if key.partition(".")[0] not in WHERE or key in overrides}
        cell = Cell(_name(named, identity, version), overrides | changed, config, identity and _digest(identity))
        found.setdefault(cell.name, cell)
    return list(found.values())


class _Base:
    """A variant's config; a value is checked against it once, and its data identified once."""

    def __init__(self, config: ConfigDict):
        self._config = config
        self.flat = flatten(without_settings(config))
        self._values: dict[tuple[str, str], Any] = {}
        self._identities: dict[str, str] = {}

    def with_(self, overrides: Overrides) -> dict[str, Any]:
        return self.flat | {key: self._checked(key, value) for key, value in overrides.items() if key != VARIANT}

    def identity(self, config: Mapping[str, Any], identify: Callable[[ConfigDict], str]) -> str:
        if (known := read_by(config)) not in self._identities:
            self._identities[known] = identify(nested(config)) + _start_of(config)
        return self._identities[known]

    def _checked(self, key: str, value: Any) -> Any:
        if (known := (key, repr(value))) not in self._values:
            self._values[known] = _checked(self._config, self.flat, key, value)
        return self._values[known]


def read_by(config: Mapping[str, Any]) -> str:
    """What a flat config says of what it reads: data, finished runs, the run that training starts from."""
    return repr(sorted(item for item in config.items() if item[0].partition(".")[0] in READ or item[0] == START))


def _start_of(config: Mapping[str, Any]) -> str:
    """What tells the run that training starts from, as it is now, from what it was; "" where there is none."""
    result = Path(config[START], "result.json") if config.get(START) else None
    return _digest(result.read_text(encoding="utf-8")) if result and result.is_file() else ""


def index_of(space: Sequence[Overrides], asked: str) -> int:
    """The first cell with every `KEY=VALUE` of a list with commas; "" is the first of all.

    A value may have commas itself: a comma ends it where a key of the space follows. Raises UserError where there is no
    such cell.
    """
    keys = "|".join(map(re.escape, {key for overrides in space for key in overrides}))
    parts = [part.partition("=") for part in re.split(rf",(?=(?:{keys})=)", asked)] if asked else []
    for index, overrides in enumerate(space):
        if all(key in overrides and _is(overrides[key], value) for key, _, value in parts):
            return index
    first = ",".join(f"{key}={value}" for key, value in space[0].items() if key != "seeds")
    raise UserError(f"config.sweep.baseline={asked!r}: no setting has these values; the first has {first!r}.")


def _is(value: Any, text: str) -> bool:
    """Whether a value is what a text says: 1e-3 is 0.001."""
    try:
        return value == ast.literal_eval(text) or str(value) == text
    except (ValueError, SyntaxError):
        return str(value) == text


def _checked(config: ConfigDict, flat: Mapping[str, Any], key: str, value: Any) -> Any:
    if key not in flat:
        if any(name.startswith(f"{key}.") for name in flat):
            raise UserError(f"sweep: {key!r} is a section of the config: override its keys.")
        own = meant(key, flat) or next(iter(difflib.get_close_matches(key, flat, n=1, cutoff=0.5)), "")
        raise UserError(f"sweep: the config has no {key!r}." + (f" Did you mean {own!r}?" if own else ""))
    section, _, name = key.rpartition(".")
    probe = ConfigDict(config.to_dict())
    owner = probe if not section else _section(probe, section)
    try:
        owner[name] = value
    except TypeError:
        kind = type(flat[key]).__name__
        raise UserError(f"sweep: {key}={value!r}: the config has a {kind} there ({flat[key]!r}).") from None
    return owner[name]


def _section(config: ConfigDict, name: str) -> ConfigDict:
    for part in name.split("."):
        config = config[part]
    return config


def _name(config: Mapping[str, Any], identity: str, code: str) -> str:
    text = json.dumps([sorted(config.items()), identity], default=list)
    return f"{_digest(text)}-{code[:DIGITS]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
