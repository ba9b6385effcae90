"""Attention pooling: score, normalise, pool. The readable reference for every faster way.

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

import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.kernels import kernel_weights
from attention_jax.ops.masking import Mask, masked_normalize, masked_softmax
from attention_jax.ops.scoring import scaled_dot
from attention_jax.ops.shapes import align_ranks, require_batch, require_broadcast, require_same_size

Values = Float[Array, "*batch q v"]
Weights = Float[Array, "*batch q k"]

NORMALIZERS: dict[str, Callable] = {"softmax": masked_softmax, "sum": masked_normalize}


def attend(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    *,
    score: Callable = scaled_dot,
    score_params: tuple = (),
    mask: Mask | None = None,
    bias: Float[Array, "*#batch #q #k"] | None = None,
    normalize: str = "softmax",
    dropout: Dropout | None = None,
) -> Values:
    """Σ_i α_i v_i with α = normalise(score(q, k) + bias) over the keys that `mask` allows.

    Query `[..., Q, Dq]`, key `[..., K, Dk]`, value `[..., K, V]` → `[..., Q, V]` (Vaswani et al. 2017,
    §3.2). `normalize` is "softmax", or "sum" for scores that are non-negative weights already.
    Dropout acts on the weights. Raises ValueError where shapes do not fit.
    """
    return attend_with_weights(
        query, key, value, score=score, score_params=score_params,
        mask=mask, bias=bias, normalize=normalize, dropout=dropout,
    )[0]  # fmt: skip


def attend_with_weights(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    *,
    score: Callable = scaled_dot,
    score_params: tuple = (),
    mask: Mask | None = None,
    bias: Float[Array, "*#batch #q #k"] | None = None,
    normalize: str = "softmax",
    dropout: Dropout | None = None,
) -> tuple[Values, Weights]:
    """`attend`, and the weights `[..., Q, K]` as they were before dropout."""
    _require_pairs(key, value)
    weights = attention_weights(
        query, key, score=score, score_params=score_params, mask=mask, bias=bias, normalize=normalize
    )
    return pool(drop(weights, dropout), value), weights


def attention_weights(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    *,
    score: Callable = scaled_dot,
    score_params: tuple = (),
    mask: Mask | None = None,
    bias: Float[Array, "*#batch #q #k"] | None = None,
    normalize: str = "softmax",
) -> Weights:
    """normalise(score(q, k) + bias) over the keys that `mask` allows: the weights of `attend`, `[..., Q, K]`."""
    if normalize not in NORMALIZERS:
        raise ValueError(f"normalize={normalize!r}: choose one of {', '.join(NORMALIZERS)}.")
    scores = score(query, key, *score_params)
    if bias is not None:
        require_broadcast("bias", bias.shape, "scores", scores.shape)
        scores = sum(align_ranks(scores, bias))
    return NORMALIZERS[normalize](scores, mask)


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
    """The Nadaraya–Watson estimate Σ_i v_i K(u_i) / Σ_j K(u_j), u_i = ‖q − k_i‖ / width."""
    _require_pairs(key, value)
    return pool(kernel_weights(query, key, kernel, width, mask, empty), value)


def pool(weights: Weights, value: Float[Array, "*#batch k v"]) -> Values:
    """Σ_i α_i v_i, accumulated in float32, in the values' dtype.

    Raises ValueError where the values have batch axes that the weights have not.
    """
    require_broadcast("value's batch axes", value.shape[:-2], "weights' batch axes", weights.shape[:-2])
    accumulator = jnp.promote_types(value.dtype, jnp.float32)
    pooled = jnp.einsum("...qk,...kv->...qv", weights.astype(value.dtype), value, preferred_element_type=accumulator)
    return pooled.astype(value.dtype)


def _require_pairs(key: Array, value: Array) -> None:
    require_batch(key=key, value=value)
    require_same_size(-2, key=key, value=value)
