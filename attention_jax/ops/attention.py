"""The record of what attention computes, whichever model asks for it and whichever backend answers."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float

from attention_jax.ops.dropout import Dropout
from attention_jax.ops.masking import Mask
from attention_jax.ops.normalizing import NORMALIZERS, Normalizer
from attention_jax.ops.scoring import SCORES, Score


class Relative(NamedTuple):
    """How attention depends on the positions of queries and keys; a part that is None does nothing.

    `queries` [..., Q] and `keys` [..., K] are positions; a backend calls the functions with any block of them.
    `bias(params, query, queries, keys)` [..., Q, K] is added to the scores. `falloff(params, queries, keys)`
    [..., Q, K] ≥ 0 multiplies the weights, which are not normalised again. `mix(params, weights, queries, keys)`
    [..., Q, V], linear in the weights, is added to the pooled values.
    """

    bias: Callable[..., Array] | None = None
    falloff: Callable[..., Array] | None = None
    mix: Callable[..., Array] | None = None
    params: Any = ()
    queries: Any = None
    keys: Any = None


class Replacement(NamedTuple):
    """Weights that stand in for those computed, where `chosen` broadcasts to them as true: other heads keep theirs."""

    chosen: Bool[Array, "*#batch 1 1"]
    weights: Float[Array, "*#batch q k"]


class Attention(NamedTuple):
    """normalise(score(q, k) + bias) over the keys that the mask allows, dropped, and the values pooled by it.

    Axes before the last two of every array are batch axes. `replacement` takes the place of the weights before dropout,
    and `with_weights` asks for them.
    """

    score: Score = SCORES["scaled_dot"]
    score_params: tuple = ()
    normalizer: Normalizer = NORMALIZERS["softmax"]
    normalizer_params: tuple = ()
    mask: Mask | None = None
    bias: Float[Array, "*#batch #q #k"] | None = None
    relative: Relative = Relative()
    dropout: Dropout | None = None
    replacement: Replacement | None = None
    with_weights: bool = False

    @property
    def has_bias(self) -> bool:
        return self.bias is not None or self.relative.bias is not None


class Attended(NamedTuple):
    """The pooled values, and the weights before dropout where they were asked for."""

    values: Float[Array, "*batch q v"]
    weights: Float[Array, "*batch q k"] | None


def require_fitting(attention: Attention, score: str, normalize: str) -> None:
    """Raise ValueError where a score and a normalizer of those names do not go together."""
    if not attention.normalizer.of_weights:
        return
    if not attention.score.is_weight:
        raise ValueError(
            f"normalize={normalize!r} divides weights ≥ 0, and score={score!r} may be negative: "
            "choose normalize='softmax', or score='kernel:name=epanechnikov,width=2'."
        )
    if attention.has_bias:
        raise ValueError(
            f"normalize={normalize!r} divides weights ≥ 0, and a position encoding that adds to scores may make them "
            "negative: choose normalize='softmax', or positions that add nothing to scores."
        )
