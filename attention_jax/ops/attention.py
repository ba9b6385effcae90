"""The record of what attention computes, the same for every model and every backend."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float

from attention_jax.ops.dropout import Dropout
from attention_jax.ops.encoding import PairBias
from attention_jax.ops.masking import Mask
from attention_jax.ops.normalizing import NORMALIZERS, Normalizer
from attention_jax.ops.scoring import SCORES, Score


class Relative(NamedTuple):
    """How attention depends on the positions of queries and keys; a part that is None does nothing.

    `queries` [..., Q] and `keys` [..., K] are positions, or trees of such arrays with other numbers of each beside
    them; a backend calls the functions with any block of them.
    `bias(params, query, queries, keys)` [..., Q, K] is added to the scores. `falloff(params, queries, keys)`
    [..., Q, K] ≥ 0 multiplies the weights, which are not normalised again. `mix(params, weights, queries, keys)`
    [..., Q, V], linear in the weights, is added to the pooled values. `pairs(params, heads)` is the same bias as a
    `PairBias`, for kernels; its numbers are `[*heads, n]` with the axes that the query has between its batch and Q.
    """

    bias: Callable[..., Array] | None = None
    falloff: Callable[..., Array] | None = None
    mix: Callable[..., Array] | None = None
    params: Any = ()
    queries: Any = None
    keys: Any = None
    pairs: Callable[..., PairBias] | None = None


class Maps(NamedTuple):
    """What is done to the maps of all heads, whole rows of them; a part that is None does nothing.

    `scores(params, scores, query, allowed)` gives the scores that are normalised, from those with their biases;
    `weights(params, weights)` the weights that pool. Both are of all heads, as many as queries have.
    """

    scores: Callable[..., Array] | None = None
    weights: Callable[..., Array] | None = None
    params: Any = ()

    @property
    def do_something(self) -> bool:
        return self.scores is not None or self.weights is not None


class Replacement(NamedTuple):
    """Weights to use instead of those computed, where `chosen` is true; other heads keep their own."""

    chosen: Bool[Array, "*#batch 1 1"]
    weights: Float[Array, "*#batch q k"]


class Attention(NamedTuple):
    """What attention computes: Σ_i dropout(α)_i v_i with α = normalise(score(q, k) + bias) over the keys of the mask.

    All axes before the last two are batch axes. `maps` changes scores and weights by those of all heads, `replacement`
    the weights before dropout. `with_weights` asks for the weights beside the values.
    """

    score: Score = SCORES["scaled_dot"]
    score_params: tuple = ()
    normalizer: Normalizer = NORMALIZERS["softmax"]
    normalizer_params: tuple = ()
    mask: Mask | None = None
    bias: Float[Array, "*#batch #q #k"] | None = None
    relative: Relative = Relative()
    maps: Maps = Maps()
    dropout: Dropout | None = None
    replacement: Replacement | None = None
    with_weights: bool = False

    @property
    def has_bias(self) -> bool:
        return self.bias is not None or self.relative.bias is not None


class Attended(NamedTuple):
    """The pooled values, and the weights before dropout if they were asked for, else None."""

    values: Float[Array, "*batch q v"]
    weights: Float[Array, "*batch q k"] | None


def require_fitting(attention: Attention, score: str, normalize: str) -> None:
    """Raise ValueError for a normalizer of weights ≥ 0 with scores that may be negative; the texts name the two."""
    if not attention.normalizer.of_weights:
        return
    if not attention.score.is_weight:
        raise ValueError(
            f"normalize={normalize!r}: needs weights of 0 or more, and score={score!r} may be negative. "
            "Choose normalize='softmax', or score='kernel:name=epanechnikov,width=2'."
        )
    if attention.has_bias:
        raise ValueError(
            f"normalize={normalize!r}: needs weights of 0 or more, and a position encoding that adds a bias may make "
            "them negative. Choose normalize='softmax', or positions without a bias."
        )
