"""The record that every position encoding is, and what its functions may depend on."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxtyping import Array, Float, Key

from attention_jax.ops.naming import is_number

SELF_ATTENTION = ("encoder", "decoder")  # never "cross": positions in two texts have no distance


class Spec(NamedTuple):
    """What an encoding's parameters depend on; `is_causal`: no key comes after its query."""

    width: int
    heads: int
    head_size: int
    max_length: int
    is_causal: bool


class PairBias(NamedTuple):
    """A bias for kernels, which have no gathers: elementwise in two positions, with a few numbers of each head.

    `numbers` is `[*heads, n]`; `apply(numbers, query_position, key_position)` gets them as n scalars, or as n arrays
    that broadcast against the positions. A bias that is `numbers[which(key position − query position)]` says so by
    `which`, the same between two distances at which it is the same: kernels look it up once for a block of such.
    """

    numbers: Float[Array, "*heads n"]
    apply: Callable[[Sequence[Array], Array, Array], Array]
    which: Callable[[Array], Array] | None = None


@dataclasses.dataclass(frozen=True)
class Encoding:
    """A position encoding: pure functions of explicit positions; a part that it does not have is None.

    `kinds` are the kinds of attention that it is defined for. `bias` and `mix` have heads at axis −3, as their queries
    and weights do. `pairs` is the same bias for kernels; None where it reads more of a query than its position.
    `sample_positions` gives a row of texts positions that rise in each; `begins` says of every token at which index its
    text begins, and what is drawn is dealt out from the index `first` on, which padding on the left is before.
    `max_length(spec)` is the longest text that it has positions for, None where any length will do. `even` names the
    size of `Spec` that must be even, "width" or "head_size".
    """

    init: Callable[[Key[Array, ""], Spec], Any] = lambda key, spec: {}
    add: Callable[[Any, Array, Array], Array] | None = None  # (params, x, positions) → x
    rotate: Callable[[Any, Array, Array], Array] | None = None  # (params, x, positions) → x
    bias: Callable[[Any, Array, Array, Array], Array] | None = None  # (params, query, q_positions, k_positions)
    pairs: Callable[[Any, int], PairBias] | None = None  # (params, heads)
    mix: Callable[[Any, Array, Array, Array], Array] | None = None  # (params, weights, q_positions, k_positions)
    sample_positions: Callable[..., Array] | None = None  # (key, begins, first) → positions
    kinds: tuple[str, ...] = SELF_ATTENTION
    is_shared: bool = True  # whether layers share the parameters
    max_length: Callable[[Spec], int | None] = lambda spec: None
    even: str = ""


def require_least(**least: tuple[Any, float]) -> None:
    """Raise ValueError for an option that is no finite number or is too small; `least`: name=(value, least value)."""
    for name, (value, at_least) in least.items():
        if not is_number(value) or value < at_least:
            raise ValueError(f"{name}={value!r}: needs a number, {at_least:g} or more.")
