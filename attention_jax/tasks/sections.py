"""Constructors from a config's sections: their errors name the config's keys, and their types come from `precision`."""

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.training.progress import tell

TYPES = ("float32", "bfloat16")


def types_of(config: ConfigDict) -> dict[str, Any]:
    """A model's `dtype` and `param_dtype`, from `config.precision`. Raises UserError for other types than `TYPES`."""
    for name in ("dtype", "param_dtype"):
        if config.precision[name] not in TYPES:
            raise UserError(f"config.precision.{name}={config.precision[name]!r}: choose one of {', '.join(TYPES)}.")
    return {name: jnp.dtype(config.precision[name]) for name in ("dtype", "param_dtype")}


@functools.cache
def tell_once(line: str) -> None:
    """A line for the user, however often it is told."""
    tell(line)


def tell_unread_dropout(rate: float, sites: tuple[str, ...], section: str) -> None:
    """Tell where a rate of dropout drops nothing: `section` is that of the model, whose `sites` are none."""
    if rate and not sites:
        tell_once(f"warning: config.optimizer.dropout={rate} drops nothing: {section}.dropout_sites is empty")


@contextlib.contextmanager
def of_section(section: str) -> Iterator[None]:
    """Raise a constructor's error as a UserError that names the config's key: "config.model.kwargs.heads=5: …".

    A ValueError opens with KEY=VALUE, or is about no single key. A TypeError is about a key that is unknown or missing.
    """
    try:
        yield
    except UserError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(_named(section, error)) from None


def _named(section: str, error: Exception) -> str:
    text = str(error)
    if unknown := re.search(r"unexpected keyword argument '(\w+)'", text):
        return f"{section}.{unknown[1]}: no such key."
    missing = re.search(r"missing \d+ required [\w-]+ arguments?: (.*)", text)
    if missing or isinstance(error, KeyError):
        names = re.findall(r"'(\w+)'", missing[1] if missing else text)
        absent = ", ".join(repr(f"{section.removeprefix('config.')}.{name}") for name in names)
        return f"the config has no {absent}."
    return f"{section}.{text}" if re.match(r"[\w.]+=", text) else f"{section}: {text}"
