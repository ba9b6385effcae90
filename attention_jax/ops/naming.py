"""Texts that name a function with options: "gaussian:width=2", "t5:num_buckets=16,max_distance=64"."""

import ast
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Built = TypeVar("Built")


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """From "shaw:clip=8" to ("shaw", {"clip": 8}); what is no Python literal stays a text."""
    name, _, written = text.partition(":")
    pairs = [option.partition("=") for option in written.split(",") if option]
    return name, {option.strip(): _value(value) for option, _, value in pairs}


def build(kind: str, text: str, builders: Mapping[str, Callable[..., Built]]) -> Built:
    """What a text names among `builders`, with its options. Raises ValueError for another name or option."""
    name, options = parse(text)
    if name not in builders:
        raise ValueError(f"{kind}={name!r}: choose one of {', '.join(builders)}.")
    return built(kind, text, name, lambda: builders[name](**options))


def built(kind: str, text: str, name: str, make: Callable[[], Built]) -> Built:
    """What `make` makes; its refusals say which text they are of."""
    try:
        return make()
    except TypeError as error:
        raise ValueError(f"{kind}={text!r}: {name} {str(error).partition('() ')[2] or error}.") from None
    except ValueError as error:
        raise ValueError(f"{kind}={text!r}: {error}") from None


def more_than_0(name: str, value: Any) -> float:
    """The option `name`. Raises ValueError unless it is a number more than 0."""
    if not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{name}={value!r}: needs a number more than 0.")
    return value


def whole(name: str, value: Any) -> int:
    """The option `name`. Raises ValueError unless it is a whole number, 1 or more."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}: needs a whole number, 1 or more.")
    return value


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
