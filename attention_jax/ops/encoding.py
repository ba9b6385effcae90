"""The record that every position encoding is, and what its functions may depend on."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Key

EVERYWHERE = ("encoder", "decoder")  # self-attention; the indices of two texts have no distance, so never "cross"


class Spec(NamedTuple):
    """What an encoding's parameters depend on; `is_causal` where keys come before their query."""

    width: int
    heads: int
    head_size: int
    max_length: int
    is_causal: bool


@dataclasses.dataclass(frozen=True)
class Encoding:
    """A position encoding. Bias and mix have heads at axis −3, which queries and weights have too.

    `max_length(spec)` is the longest text that it can place, None where there is no bound.
    """

    init: Callable[[Key[Array, ""], Spec], Any] = lambda key, spec: {}
    add: Callable[[Any, Array, Array], Array] | None = None  # (params, x, positions) → x
    rotate: Callable[[Any, Array, Array], Array] | None = None  # (params, x, positions) → x
    bias: Callable[[Any, Array, Array, Array], Array] | None = None  # (params, query, q_positions, k_positions)
    mix: Callable[[Any, Array, Array, Array], Array] | None = None  # (params, weights, q_positions, k_positions)
    sample_positions: Callable[[Key[Array, ""], int], Array] | None = None  # (key, length) → rising positions
    sites: tuple[str, ...] = EVERYWHERE
    is_shared: bool = True  # whether layers share the parameters
    max_length: Callable[[Spec], int | None] = lambda spec: None
    even: str = ""  # "width" or "head_size", where that must be even


def require_least(**least: tuple[Any, float]) -> None:
    """Raise ValueError for an option that is no number, or less than it may be."""
    for name, (value, at_least) in least.items():
        if not isinstance(value, (int, float)) or value < at_least:
            raise ValueError(f"{name}={value!r}: needs a number, {at_least:g} or more.")
