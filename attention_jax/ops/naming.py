"""Texts that name a function with options: "gaussian:width=2", "t5:num_buckets=16,max_distance=64"."""

import ast
import inspect
import numbers
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Built = TypeVar("Built")


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """From "shaw:clip=8" to ("shaw", {"clip": 8}); a value that is no Python literal stays a text."""
    name, _, written = text.partition(":")
    pairs = [option.partition("=") for option in written.split(",") if option]
    options = [option.strip() for option, _, _ in pairs]
    if twice := [option for option in options if options.count(option) > 1]:
        raise ValueError(f"{text!r}: gives {twice[0]} twice.")
    return name, {option.strip(): _value(value) for option, _, value in pairs}


def build(key: str, text: str, builders: Mapping[str, Callable[..., Built]]) -> Built:
    """What a text names among `builders`, built with its options.

    Raises ValueError for another name or option; `key` is what the error calls the text.
    """
    name, options = parse(text)
    if name not in builders:
        raise ValueError(f"{key}={name!r}: choose one of {', '.join(builders)}.")
    return built(key, text, lambda: builders[name](**options), builders[name])


def built(key: str, text: str, make: Callable[[], Built], builder: Callable) -> Built:
    """The result of `make`. Its errors become a ValueError that opens with the text, as KEY='TEXT'.

    `builder` is the function that `make` gives the options to.
    """
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}={text!r}: {reason(error, options_of(builder))}") from None


def reason(error: Exception, options: Sequence[str] = ()) -> str:
    """An error's message; of an argument that a function does not take, that there is no such option, but `options`."""
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if not unknown:
        return str(error)
    return f"has no option {unknown[1]!r}" + (f"; its options are {', '.join(options)}." if options else ".")


def options_of(function: Callable) -> list[str]:
    """What may be given to a function by name."""
    return [one.name for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]


def more_than_0(name: str, value: Any) -> float:
    """`value`, the option `name`. Raises ValueError unless it is a finite number more than 0."""
    if not is_number(value) or value <= 0:
        raise ValueError(f"{name}={value!r}: needs a number more than 0, and finite.")
    return value


def whole(name: str, value: Any, least: int = 1) -> int:
    """`value`, the option `name`. Raises ValueError unless it is a whole number, `least` or more."""
    if not is_number(value) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r}: needs a whole number, {least} or more.")
    return int(value)


def truth(name: str, value: Any) -> bool:
    """`value`, the option `name`. Raises ValueError unless it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: needs True or False.")
    return value


def is_number(value: Any) -> bool:
    """Whether an option's value is a finite number; True and False are none."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    return abs(value if isinstance(value, int) else float(value)) <= sys.float_info.max


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
