"""Normalizers: from the scores of a query's keys to weights ≥ 0.

A normalizer maps scores `[..., Q, K]` and a mask to weights `[..., Q, K]`; it computes in float32 or more. A query that
may attend to no key gets zeros, with finite gradients. Configs name the entries of `NORMALIZERS`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops import naming
from attention_jax.ops.masking import Mask, masked_normalize, masked_softmax, with_mask
from attention_jax.ops.naming import more_than_0, whole

Scores = Float[Array, "*batch q k"]
Weights = Float[Array, "*batch q k"]


def sigmoid(scores: Scores, mask: Mask | None = None) -> Weights:
    """σ(a − ln n) of each key alone; the query may attend to n keys (Ramapuram et al. 2024, eq. 3 and §3.1).

    The weights need not sum to 1. The bias −ln n keeps their sum near 1 while scores are small.
    """
    scores_f32, allowed = with_mask(scores, mask)
    count = jnp.sum(jnp.broadcast_to(allowed, scores_f32.shape), axis=-1, keepdims=True)
    return jnp.where(allowed, _sigmoid(scores_f32, count), 0).astype(scores.dtype)


def sink_softmax(scores: Scores, mask: Mask | None = None, sink: Float[Array, "*#batch 1 1"] | float = 0.0) -> Weights:
    """exp(a_i) / (exp(s) + Σ_j exp(a_j)): a query can put weight on no key, on a sink (Xiao et al. 2023, eq. 2).

    The sink's score s is a number, or an array `[..., 1, 1]` with one for each head; s = 0 adds 1 to the denominator.
    """
    scores_f32, allowed = with_mask(scores, mask)
    sink = finite_sink(sink, scores_f32.dtype)
    highest = jnp.max(scores_f32, axis=-1, keepdims=True, where=allowed, initial=-jnp.inf)
    peak = jax.lax.stop_gradient(jnp.maximum(highest, _as_column(sink, highest.ndim)))
    weights = jnp.where(allowed, jnp.exp(jnp.where(allowed, scores_f32 - peak, 0)), 0)
    total = jnp.exp(_as_column(sink, peak.ndim) - peak) + jnp.sum(weights, axis=-1, keepdims=True)
    return (weights / total).astype(scores.dtype)


def finite_sink(sink: Array | float, dtype: Any) -> Array:
    """A sink's score as an array; −∞ is the lowest number, so that every row has a sum."""
    return jnp.maximum(jnp.asarray(sink, dtype), jnp.finfo(dtype).min)


def sparsemax(scores: Scores, mask: Mask | None = None) -> Weights:
    """max(a − τ, 0), the weights nearest to a whose sum is 1; τ makes it 1 (Martins & Astudillo 2016, alg. 1)."""
    z, allowed = _below_peak(scores, mask)
    ordered = -jnp.sort(-jax.lax.stop_gradient(z), axis=-1)
    rank, total = _ranks(ordered), jnp.cumsum(ordered, axis=-1)
    size = jnp.sum(1 + rank * ordered > total, axis=-1, keepdims=True)
    threshold = (jnp.take_along_axis(total, size - 1, axis=-1) - 1) / size
    support = allowed & (jax.lax.stop_gradient(z) > threshold)
    # τ again, from the support alone, so that its gradient is exact.
    size = jnp.maximum(jnp.sum(support, axis=-1, keepdims=True), 1)
    threshold = (jnp.sum(jnp.where(support, z, 0), axis=-1, keepdims=True) - 1) / size
    return jnp.where(support, z - threshold, 0).astype(scores.dtype)


def entmax15(scores: Scores, mask: Mask | None = None) -> Weights:
    """max(a / 2 − τ, 0)², between softmax and sparsemax; τ makes the sum 1 (Peters et al. 2019, alg. 2)."""
    z, allowed = _below_peak(scores / 2, mask)
    ordered = -jnp.sort(-jax.lax.stop_gradient(z), axis=-1)
    rank = _ranks(ordered)
    mean, square = (jnp.cumsum(power, axis=-1) / rank for power in (ordered, jnp.square(ordered)))
    thresholds = mean - jnp.sqrt(jnp.maximum((1 - rank * (square - jnp.square(mean))) / rank, 0))
    size = jnp.sum(thresholds <= ordered, axis=-1, keepdims=True)
    support = allowed & (jax.lax.stop_gradient(z) > jnp.take_along_axis(thresholds, size - 1, axis=-1))
    threshold = _entmax_threshold(z, support)
    return jnp.where(support, jnp.square(z - threshold), 0).astype(scores.dtype)


def top_k_softmax(scores: Scores, mask: Mask | None = None, *, k: int) -> Weights:
    """Softmax over a query's k highest scores, and others that equal the lowest of them (Gupta et al. 2021, §3)."""
    scores_f32, allowed = with_mask(scores, mask)
    # The barrier: were the scores computed twice, in other roundings, the lowest might not equal itself.
    ranked = jax.lax.optimization_barrier(jnp.where(allowed, jax.lax.stop_gradient(scores_f32), -jnp.inf))
    lowest = jax.lax.top_k(ranked, min(k, scores.shape[-1]))[0][..., -1:]
    return masked_softmax(scores_f32, allowed & (ranked >= lowest)).astype(scores.dtype)


def capped_softmax(scores: Scores, mask: Mask | None = None, *, cap: float) -> Weights:
    """Softmax of c tanh(a / c): scores stay between −c and c (Gemma Team 2024, §2)."""
    scores_f32 = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    return masked_softmax(soft_cap(scores_f32, cap), mask).astype(scores.dtype)


def soft_cap(scores: Scores, cap: float) -> Scores:
    """c tanh(a / c): near a if |a| is much less than c."""
    return cap * jnp.tanh(scores / cap)


class Stream(NamedTuple):
    """How the weights of a row are computed from blocks of its keys, one block after another.

    α_i = share(bend(a_i) − peak, n) / Σ_j share(bend(a_j) − peak, n). The peak is the highest bend(a_j) of the row if
    `has_peak`, else 0. n is the number of keys that the row may attend to, made only if `counts`. Without `divides`
    nothing is divided. With `has_sink` the sum has one more term, exp(s − peak), s being the normalizer's parameter.
    """

    share: Callable[[Array, Any], Array]
    has_peak: bool = False
    divides: bool = True
    counts: bool = False
    has_sink: bool = False
    bend: Callable[[Array], Array] = lambda scores: scores


class Normalizer(NamedTuple):
    """A normalizer `apply(scores, mask, *params)`, and the shapes of its parameters: heads → {name: shape}.

    `stream` is None for a normalizer that needs whole rows. `of_weights`: it takes weights ≥ 0, as kernels give them;
    others take scores of any sign.
    """

    apply: Callable[..., Weights]
    stream: Stream | None = None
    shapes: Callable[[int], dict[str, tuple[int, ...]]] = lambda heads: {}
    of_weights: bool = False

    def init_with(self, param: Callable, heads: int, dtype=jnp.float32) -> tuple:
        """The parameters, all zeros, made by `param(name, initializer, shape, dtype)`."""
        zeros = jax.nn.initializers.zeros
        return tuple(param(name, zeros, shape, dtype) for name, shape in self.shapes(heads).items())


_EXPONENTIAL = Stream(lambda below, count: jnp.exp(below), has_peak=True)

BUILDERS: dict[str, Callable[..., Normalizer]] = {
    "softmax": lambda: Normalizer(masked_softmax, _EXPONENTIAL),
    "sum": lambda: Normalizer(masked_normalize, Stream(lambda weights, count: weights), of_weights=True),
    "sigmoid": lambda: Normalizer(sigmoid, Stream(lambda a, count: _sigmoid(a, count), divides=False, counts=True)),
    "sink": lambda: Normalizer(sink_softmax, _EXPONENTIAL._replace(has_sink=True)),
    "learned_sink": lambda: Normalizer(
        sink_softmax, _EXPONENTIAL._replace(has_sink=True), lambda heads: {"sink": (heads,)}
    ),
    "sparsemax": lambda: Normalizer(sparsemax),
    "entmax15": lambda: Normalizer(entmax15),
    "top_k": lambda k=8: Normalizer(functools.partial(top_k_softmax, k=whole("k", k))),
    "softcap": lambda cap=50.0: Normalizer(
        functools.partial(capped_softmax, cap=more_than_0("cap", cap)),
        _EXPONENTIAL._replace(bend=functools.partial(soft_cap, cap=cap)),
    ),
}
NORMALIZERS: dict[str, Normalizer] = {name: build() for name, build in BUILDERS.items()}


@functools.cache
def make_normalizer(text: str, key: str = "normalize") -> Normalizer:
    """The normalizer that a text names, with options: "softmax", "top_k:k=8", "softcap:cap=30".

    Raises ValueError for another name or option; `key` is what the error calls the text.
    """
    return naming.build(key, text, BUILDERS)


def _sigmoid(scores: Array, count: Array) -> Array:
    return jax.nn.sigmoid(scores - jnp.log(jnp.maximum(count, 1).astype(scores.dtype)))


def _below_peak(scores: Array, mask: Mask | None) -> tuple[Array, Array]:
    """Scores less the highest of their row; −2, which is below every τ ≥ −1, for keys that are not allowed."""
    scores_f32, allowed = with_mask(scores, mask)
    peak = jnp.max(scores_f32, axis=-1, keepdims=True, where=allowed, initial=-jnp.inf)
    peak = jax.lax.stop_gradient(jnp.where(jnp.isfinite(peak), peak, 0))
    return jnp.where(allowed, scores_f32 - peak, -2), allowed


def _entmax_threshold(z: Array, support: Array) -> Array:
    """τ from the support alone, so that its gradient is exact; 0 without support."""
    size = jnp.maximum(jnp.sum(support, axis=-1, keepdims=True), 1)
    mean = jnp.sum(jnp.where(support, z, 0), axis=-1, keepdims=True) / size
    spread = jnp.sum(jnp.where(support, jnp.square(z - mean), 0), axis=-1, keepdims=True)
    return mean - jnp.sqrt(jnp.maximum((1 - spread) / size, jnp.finfo(z.dtype).tiny))


def _ranks(ordered: Array) -> Array:
    return jnp.cumsum(jnp.ones_like(ordered), axis=-1)


def _as_column(sink: Array, rank: int) -> Array:
    return sink.reshape((1,) * (rank - sink.ndim) + sink.shape)
