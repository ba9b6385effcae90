"""Attention pooling: score, normalise, pool. The reference that every faster backend must equal.

Self-attention of six three-dimensional tokens, by plain dot products:

>>> import jax.numpy as jnp
>>> from attention_jax.ops.scoring import dot
>>> x = jnp.array([[0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64],
...                [0.22, 0.58, 0.33], [0.77, 0.25, 0.10], [0.05, 0.80, 0.55]])
>>> context, weights = attend_with_weights(x, x, x, score=dot)
>>> print(*(f"{weight:.4f}" for weight in weights[1]))
0.1385 0.2379 0.2333 0.1240 0.1082 0.1581
>>> print(*(f"{feature:.4f}" for feature in context[1]))
0.4419 0.6515 0.5683
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.attention import Attended, Attention, require_fitting
from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.dtypes import floating
from attention_jax.ops.kernels import scaled_square, undivided_weights
from attention_jax.ops.masking import Mask, fitting_rule, with_mask
from attention_jax.ops.naming import is_number, more_than_0
from attention_jax.ops.normalizing import make_normalizer
from attention_jax.ops.scoring import Score, make_score, scaled_dot
from attention_jax.ops.shapes import align_ranks, require_batch, require_broadcast, require_choice, require_same_size

PAIRS = 2**21  # of queries and keys, whose kernels are computed at once
Values = Float[Array, "*batch q v"]
Weights = Float[Array, "*batch q k"]


def attend(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    *,
    score: Callable | str = scaled_dot,
    score_params: tuple = (),
    mask: Mask | None = None,
    bias: Float[Array, "*#batch #q #k"] | None = None,
    normalize: str = "softmax",
    dropout: Dropout | None = None,
    **more: Any,
) -> Values:
    """Σ_i α_i v_i with α = normalise(score(q, k) + bias) over the keys that `mask` allows.

    Query `[..., Q, Dq]`, key `[..., K, Dk]`, value `[..., K, V]` → `[..., Q, V]` (Vaswani et al. 2017,
    §3.2). `score` is a function or a name of `SCORES`; `normalize` is a name of `NORMALIZERS`, such as "softmax", or
    "sum" for scores that are weights ≥ 0. Dropout acts on the weights. `more` are other fields of `Attention`. Raises
    ValueError for shapes that do not fit.
    """
    asked = {"score": score, "score_params": score_params, "mask": mask, "bias": bias, "dropout": dropout, **more}
    return pooled(query, key, value, attention_of(normalize=normalize, **asked)).values


def attend_with_weights(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    **asked: Any,
) -> tuple[Values, Weights]:
    """The values of `attend`, and the weights `[..., Q, K]` before dropout."""
    found: Any = pooled(query, key, value, attention_of(**asked, with_weights=True))
    return found.values, found.weights


def attention_of(*, score: Callable | Score | str = scaled_dot, normalize: str = "softmax", **more: Any) -> Attention:
    """The record of these keywords of `attend`. Raises ValueError for unknown names, and for two that do not fit."""
    chosen = make_score(score) if isinstance(score, str) else score if isinstance(score, Score) else Score(score)
    record = Attention(score=chosen, normalizer=make_normalizer(normalize), **more)
    if isinstance(score, str):  # of a function nobody knows whether it may be negative
        require_fitting(record, score, normalize)
    return record


def pooled(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    attention: Attention,
) -> Attended:
    """The attention that the record asks for, with the weights of all queries and keys in memory at once."""
    _require_pairs(key, value)
    weights, relative = _weights(query, key, attention), attention.relative
    if attention.replacement is not None:
        chosen, others, weights = align_ranks(*attention.replacement, weights)
        weights = jnp.where(chosen, others.astype(weights.dtype), weights)
    kept = drop(weights, attention.dropout)
    values = pool(kept, value)
    if relative.mix is not None:
        mixed = relative.mix(relative.params, kept, relative.queries, relative.keys)
        values += mixed.astype(values.dtype)
    return Attended(values, weights if attention.with_weights else None)


def attention_weights(query: Float[Array, "*#batch q dq"], key: Float[Array, "*#batch k dk"], **asked: Any) -> Weights:
    """normalise(score(q, k) + bias) over the keys that `mask` allows: the weights of `attend`, `[..., Q, K]`."""
    return _weights(query, key, attention_of(**asked))


def _weights(query: Array, key: Array, attention: Attention) -> Weights:
    scores = attention.score.apply(query, key, *attention.score_params)
    relative = attention.relative
    if attention.bias is not None:
        require_broadcast("bias", attention.bias.shape, "scores", scores.shape)
        scores = jnp.add(*align_ranks(scores, attention.bias))
    if relative.bias is not None:
        bias = relative.bias(relative.params, query, relative.queries, relative.keys)
        scores = jnp.add(*align_ranks(scores, bias))
    maps, mask = attention.maps, attention.mask
    if maps.scores is not None:
        scores, mask = with_mask(scores, mask)
        scores = maps.scores(maps.params, scores, query, mask)
    weights = attention.normalizer.apply(scores, mask, *attention.normalizer_params)
    if maps.weights is not None:
        weights = maps.weights(maps.params, weights)
    if relative.falloff is None:
        return weights
    falloff = relative.falloff(relative.params, relative.queries, relative.keys)
    return jnp.multiply(*align_ranks(weights, falloff.astype(weights.dtype)))


def kernel_regression(
    query: Float[Array, "*#batch q d"],
    key: Float[Array, "*#batch k d"],
    value: Float[Array, "*#batch k v"],
    *,
    kernel: str = "gaussian",
    width: Float[Array, "..."] | float = 1.0,
    mask: Mask | None = None,
    empty: str = "mean",
) -> Values:
    """The Nadaraya–Watson estimate Σ_i v_i K(u_i) / Σ_j K(u_j), u_i = ‖q − k_i‖ / width.

    Of many pairs the weights of a block of queries are in memory at a time, and gradients compute them again. Raises
    ValueError for an unknown kernel, and for a width that is a number of 0 or less.
    """
    if is_number(width):
        more_than_0("width", width)
    _require_pairs(key, value)
    require_choice("empty", empty, ("mean", "zeros"))

    def estimate(query, mask):
        weights, allowed = undivided_weights(query, key, kernel, width, mask)
        shape = (*weights.shape[:-2], allowed.shape[-2], weights.shape[-1])
        equal = jnp.broadcast_to(allowed, shape).astype(weights.dtype)
        return _mean(weights, value, _mean(equal, value) if empty == "mean" else 0)

    length, num_keys = query.shape[-2], key.shape[-2]
    size = max(PAIRS // max(num_keys, 1), 1)
    if length <= size:
        return estimate(query, mask)
    scores = jax.eval_shape(scaled_square, query, key, width)
    rule = None if mask is None else fitting_rule(mask, scores.shape)

    def of_rows(rows):
        allowed = None if rule is None else rule.block(rows, jnp.arange(num_keys))
        return estimate(jnp.take(query, rows, axis=-2), allowed)

    return by_rows(of_rows, length, size)


def _mean(weights: Weights, value: Float[Array, "*#batch k v"], otherwise: Values | float = 0) -> Values:
    """Σ_i w_i v_i / Σ_j w_j, and `otherwise` where all w are 0.

    Both sums are products, rounded alike: gradients are of the difference of a value and the mean.
    """
    precise = value.astype(jnp.promote_types(value.dtype, weights.dtype))
    total = pool(weights, jnp.ones_like(precise[..., :1]))
    found = pool(weights, precise) / jnp.where(total == 0, 1, total)
    return jnp.where(total == 0, otherwise, found).astype(floating(value, weights.dtype).dtype)


def by_rows(of_rows: Callable[[Int[Array, " q"]], Any], length: int, size: int) -> Any:
    """`of_rows(indices)` of all `length` queries, at most `size` at a time; its arrays are `[..., q, n]`.

    The last block is filled up with the last query. Gradients compute every block again.
    """
    if length <= size:
        return of_rows(jnp.arange(length))
    index = jnp.arange(-(-length // size) * size).reshape(-1, size)
    found = jax.lax.map(jax.checkpoint(of_rows), jnp.minimum(index, length - 1))

    def joined(blocks):
        array = jnp.moveaxis(blocks, 0, -3)  # [..., blocks, q, n]
        return array.reshape(*array.shape[:-3], index.size, array.shape[-1])[..., :length, :]

    return jax.tree.map(joined, found)


def pool(weights: Weights, value: Float[Array, "*#batch k v"]) -> Values:
    """Σ_i α_i v_i, accumulated in float32, in the values' dtype.

    Raises ValueError for values with batch axes that the weights do not have.
    """
    require_broadcast("value's batch axes", value.shape[:-2], "weights' batch axes", weights.shape[:-2])
    value = floating(value, weights.dtype)
    accumulator = jnp.promote_types(value.dtype, jnp.float32)
    pooled = jnp.einsum("...qk,...kv->...qv", weights.astype(value.dtype), value, preferred_element_type=accumulator)
    return pooled.astype(value.dtype)


def _require_pairs(key: Array, value: Array) -> None:
    require_batch(key=key, value=value)
    require_same_size(-2, key=key, value=value)
