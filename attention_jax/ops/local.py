"""Local attention: a window of keys around a centre that may lie between two of them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.masking import Mask, combine
from attention_jax.ops.pooling import Values, Weights, attention_weights, pool
from attention_jax.ops.scoring import dot, scaled_dot
from attention_jax.ops.shapes import align_ranks, require_shape


def predicted_centre(
    query: Float[Array, "*batch q d"],
    lengths: Int[Array, "*#batch"],
    w_p: Float[Array, "d h"],
    v_p: Float[Array, " h"],
) -> Float[Array, "*batch q"]:
    """p = S σ(v_pᵀ tanh(W_p q)), a place among the first S = `lengths` keys (Luong et al. 2015, eq. 9)."""
    require_shape("w_p", w_p, (query.shape[-1], v_p.shape[-1]), f"query is {query.shape}, v_p {v_p.shape}")
    fraction = jax.nn.sigmoid(dot(jnp.tanh(dot(query, w_p.T)), v_p[None, :]))[..., 0]
    return jnp.multiply(*align_ranks(fraction, lengths[..., None]))


def local_attend_with_weights(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    centre: Float[Array, "*#batch q"],
    window: int,
    *,
    score: Callable = scaled_dot,
    score_params: tuple = (),
    mask: Mask | None = None,
    is_gaussian: bool = False,
    dropout: Dropout | None = None,
) -> tuple[Values, Weights]:
    """Σ_s α_s v_s over the keys |s − p| ≤ D around each query's centre p, and the weights before dropout.

    α = softmax(score) inside the window, clipped where the keys that `mask` allows end (Luong et al.
    2015, §3.2: local-m, with p the query's own place). With `is_gaussian` (local-p, eq. 10)
    α_s is then multiplied, not normalised again, by exp(−(s − p)² / 2σ²), σ = D / 2: the gradient reaches p.
    """
    if window < 1:
        raise ValueError(f"window={window}: needs 1 or more.")
    distance_QxK = jnp.subtract(*align_ranks(jnp.arange(key.shape[-2], dtype=centre.dtype), centre[..., None]))
    weights = attention_weights(
        query, key, score=score, score_params=score_params, mask=combine(jnp.abs(distance_QxK) <= window, mask)
    )
    if is_gaussian:
        weights = weights * jnp.exp(-jnp.square(distance_QxK) / (2 * (window / 2) ** 2)).astype(weights.dtype)
    return pool(drop(weights, dropout), value), weights
