"""Hyperparameters: the numbers of a config's `optimizer` section, checked, and as arguments of a compiled step.

The section names an optimizer and a schedule. Its numbers are those that all optimizers share, those of single
optimizers, and those of the loss, such as dropout. All are dynamic: no value needs a program of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from attention_jax.errors import UserError
from attention_jax.training.optimizer import AMOUNT, FRACTION, OPTIMIZERS, POSITIVE, SCHEDULES, Range, Rule

OWN = -1.0  # stands for the chosen optimizer's own default
UNSET = {name: OWN for optimizer in OPTIMIZERS.values() for name in optimizer.numbers}
DEFAULTS = {"name": "adam", **UNSET}  # for a section of an older version, which had Adam alone

CLIPS_ALL = "more than 0: nothing would be learnt; 1e9 clips no gradient"
SHARED: dict[str, Range] = {  # any other is an amount
    "dropout": FRACTION,
    "label_smoothing": FRACTION,
    "clip_norm": POSITIVE._replace(words=CLIPS_ALL),
}


def rule_of(section: Mapping[str, Any]) -> Rule:
    """The optimizer and the schedule of a section. Raises UserError for one that does not exist."""
    for key, table in (("name", OPTIMIZERS), ("schedule", SCHEDULES)):
        if section.get(key) not in table:
            raise UserError(f"config.optimizer.{key}={section.get(key)!r}: choose one of {', '.join(table)}.")
    return Rule(section["name"], section["schedule"])


def settled(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section with the defaults of its optimizer in place of `OWN`, and without numbers of other optimizers.

    Raises UserError for a number of another optimizer that is set, and for one that is missing or out of its range.
    """
    name = rule_of(section).optimizer
    own, chosen = OPTIMIZERS[name].numbers, {}
    for key in own:
        if key not in section:
            raise UserError(f"config.optimizer has no {key!r}, which {name} takes: add **UNSET of training/hyper.py.")
    for key, value in section.items():
        if key in UNSET and key not in own:
            _require_unset(name, key, value)
        else:
            chosen[key] = own[key].default if key in own and value == OWN else value
            if is_number(value):
                _require_in(own[key].range if key in own else SHARED.get(key, AMOUNT), key, chosen[key])
    return chosen


def traced(section: Mapping[str, Any]) -> dict[str, Any]:
    """Every number of a settled section as a float32 array.

    Beside b1 there is 1 − b1, taken before it is rounded: float32's 1 − .9 is .10000002.
    """
    numbers = {name: value for name, value in section.items() if is_number(value)}
    if "b1" in numbers:
        numbers["1 - b1"] = 1 - numbers["b1"]
    return {name: jnp.float32(value) for name, value in numbers.items()}


def dynamic_keys(config: Mapping[str, Any], more: Sequence[str] = ()) -> tuple[str, ...]:
    """The keys of a flat config whose values share a program: the seeds, every number of `optimizer`, and `more`."""
    numbers = [key for key, value in config.items() if key.startswith("optimizer.") and is_number(value)]
    return ("seeds", *numbers, *more)


def is_number(value: Any) -> bool:
    """Whether a config's value is a number; a switch is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _require_unset(optimizer: str, key: str, value: float) -> None:
    if value != OWN:
        own = ", ".join(OPTIMIZERS[optimizer].numbers)
        raise UserError(
            f"config.optimizer.{key}={value}: {optimizer} has none; its own numbers are {own}. "
            f"Set --config.optimizer.{key}={OWN:g}, or choose another config.optimizer.name."
        )


def _require_in(allowed: Range, key: str, value: float) -> None:
    with np.errstate(over="ignore"):
        held = float(np.float32(value))
    if not allowed.holds(held):
        raise UserError(f"config.optimizer.{key}={value}: needs {allowed.words}.")
