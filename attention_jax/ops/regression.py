"""Regression at test time: what a layer may answer a query with, given pairs of keys and values.

Attention is one answer, the Nadaraya–Watson estimate (`pooling.kernel_regression`); others fit a map to the pairs and
apply it to the query (Wang et al. 2025, "Test-time regression"). A query is `[..., Q, D]`, a key `[..., K, D]`, a value
`[..., K, V]`, an estimate `[..., Q, V]`, linear in the values. Batch axes are the same in all three.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.kernels import kernel_weights
from attention_jax.ops.linear import Tokens, bidirectional, recurrent
from attention_jax.ops.pooling import pool
from attention_jax.ops.scoring import gaussian
from attention_jax.ops.shapes import require_same_size

Query = Float[Array, "*batch q d"]
Key = Float[Array, "*batch k d"]
Value = Float[Array, "*batch k v"]
Estimate = Float[Array, "*batch q v"]
Scalar = Float[Array, ""] | float


def local_linear(query: Query, key: Key, value: Value, width: Scalar = 1.0, penalty: Scalar = 1e-3) -> Estimate:
    """The line through the neighbours, at q: argmin Σ_i α_i (v_i − β − Bᵀ(k_i − q))² + penalty width² ‖B‖², its β.

    α are the weights of Gaussian attention. With k̄, v̄ the means of keys and values by α, it is v̄ + Bᵀ(q − k̄):
    attention answers for k̄, and the slope carries its answer to q (Hastie et al. 2009, §6.1.1). A large penalty leaves
    attention alone.
    """
    query, key = _about_the_mean(query, key)
    weights_QxK = kernel_weights(query, key, "gaussian", width)
    near_QxD, mean_QxV = pool(weights_QxK, key), pool(weights_QxK, value)
    size, width = key.shape[-1], jnp.asarray(width)
    squares_KxDD = _products(key, key)
    spread_QxDxD = _unfolded(pool(weights_QxK, squares_KxDD), size) - near_QxD[..., :, None] * near_QxD[..., None, :]
    together_QxDxV = _unfolded(pool(weights_QxK, _products(key, value)), size)
    together_QxDxV = together_QxDxV - near_QxD[..., :, None] * mean_QxV[..., None, :]
    slope_QxDxV = jnp.linalg.solve(_penalised(spread_QxDxD, penalty * width**2), together_QxDxV)
    return mean_QxV + jnp.einsum("...qd,...qdv->...qv", query - near_QxD, slope_QxDxV)


def ridge(query: Query, key: Key, value: Value, penalty: Scalar = 1.0) -> Estimate:
    """W q with W = argmin Σ_i ‖v_i − W k_i‖² + penalty ‖W‖² (Hoerl & Kennard 1970).

    It is the mean of W given the pairs where W is drawn from N(0, σ_w² I), values have noise of variance σ², and
    penalty = σ² / σ_w².
    """
    require_same_size(-1, query=query, key=key)
    matrix_DxD = _penalised(jnp.einsum("...kd,...ke->...de", key, key), penalty)
    return query @ jnp.linalg.solve(matrix_DxD, jnp.einsum("...kd,...kv->...dv", key, value))


def kernel_ridge(query: Query, key: Key, value: Value, width: Scalar = 1.0, penalty: Scalar = 1.0) -> Estimate:
    """K(q, k) (K(k, k) + penalty I)⁻¹ v with the Gaussian kernel K (Saunders et al. 1998).

    Attention divides the weights of a query by their sum; this divides by what keys say of one another. It is the mean
    of a Gaussian process of covariance K, given values with noise of variance `penalty` (Rasmussen & Williams 2006,
    eq. 2.25).
    """
    query, key = _about_the_mean(query, key)
    among_KxK = _penalised(jnp.exp(gaussian(key, key, width)), penalty)
    return jnp.exp(gaussian(query, key, width)) @ jnp.linalg.solve(among_KxK, value)


def gradient_step(query: Query, key: Key, value: Value, rate: Scalar = 1.0) -> Estimate:
    """rate Σ_i v_i (k_iᵀ q): linear attention without a feature map or a sum to divide by (Katharopoulos et al. 2020).

    It is W q after one step of gradient descent on ½ Σ_i ‖v_i − W k_i‖², from W = 0 (von Oswald et al. 2023, §3). For n
    keys from N(0, I) and values W k whose noise has r times a weight's variance, the best rate is 1 / (n + d + 1 + r)
    (Zhang et al. 2023, thm. 4.1, where r = 0).
    """
    require_same_size(-1, query=query, key=key)
    return rate * bidirectional(Tokens(query, key, value))


def delta_rule(query: Query, key: Key, value: Value, rate: Scalar = 1.0) -> Estimate:
    """W_K q where W_i = W_{i−1} + rate (v_i − W_{i−1} k_i) k_iᵀ, from W_0 = 0, in the order of keys.

    A step of gradient descent on ½ ‖v_i − W k_i‖² for each pair, after those before it (Widrow & Hoff 1960; Schlag et
    al. 2021, eq. 24).
    """
    require_same_size(-1, query=query, key=key)
    rates = jnp.broadcast_to(jnp.asarray(rate, value.dtype), (*key.shape[:-1], 1))
    return query @ recurrent(Tokens(key, key, value, rate=rates))[1]


def _about_the_mean(query: Query, key: Key) -> tuple[Query, Key]:
    """Both, seen from the keys' mean: where only differences count, squares of large numbers would hide them."""
    require_same_size(-1, query=query, key=key)
    mean = jnp.mean(key, axis=-2, keepdims=True)
    return query - mean, key - mean


def _products(left_KxD: Array, right_KxV: Array) -> Array:
    """Every feature of the one times every feature of the other, pair by pair: `[..., K, D·V]`."""
    product_KxDxV = left_KxD[..., :, None] * right_KxV[..., None, :]
    return product_KxDxV.reshape(*product_KxDxV.shape[:-2], -1)


def _unfolded(array: Array, size: int) -> Array:
    return array.reshape(*array.shape[:-1], size, -1)


def _penalised(matrix: Array, penalty: Array | float) -> Array:
    diagonal = jnp.eye(matrix.shape[-1], dtype=matrix.dtype) * penalty
    return matrix + diagonal.reshape((1,) * (matrix.ndim - 2) + diagonal.shape)
