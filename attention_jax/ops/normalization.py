"""Normalisation over features (layer, RMS) and over the examples of a batch."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attention_jax.ops.shapes import align_ranks

EPSILON = 1e-6


def layer_norm(x: Float[Array, "*batch d"], gain: Float[Array, " d"], bias: Float[Array, " d"]) -> Array:
    """(x − μ) / √(σ² + ε) · g + b over the features (Ba et al. 2016, eq. 4), in float32."""
    centred = x.astype(_accumulator(x))
    centred = centred - jnp.mean(centred, axis=-1, keepdims=True)
    return _affine(_over_root(centred, jnp.mean(jnp.square(centred), axis=-1, keepdims=True)), gain, bias, x.dtype)


def rms_norm(x: Float[Array, "*batch d"], gain: Float[Array, " d"]) -> Array:
    """x / √(mean(x²) + ε) · g over the features (Zhang & Sennrich 2019, eq. 4), in float32."""
    x_f32 = x.astype(_accumulator(x))
    return _affine(_over_root(x_f32, jnp.mean(jnp.square(x_f32), axis=-1, keepdims=True)), gain, None, x.dtype)


def batch_moments(
    x: Float[Array, "*batch t d"], valid: Bool[Array, "*batch t"]
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Mean and variance of each feature over the `valid` tokens (those that are not padding), in float32."""
    axes = tuple(range(x.ndim - 1))
    weights = valid[..., None].astype(_accumulator(x))
    count = jnp.maximum(jnp.sum(weights), 1)
    mean = jnp.sum(x * weights, axis=axes) / count
    squared = jnp.square(jnp.subtract(*align_ranks(x, mean)))
    return mean, jnp.sum(squared * weights, axis=axes) / count


def batch_norm(
    x: Float[Array, "*batch d"],
    mean: Float[Array, " d"],
    variance: Float[Array, " d"],
    gain: Float[Array, " d"],
    bias: Float[Array, " d"],
) -> Array:
    """(x − μ) / √(σ² + ε) · g + b with moments over examples (Ioffe & Szegedy 2015, alg. 1), in float32."""
    centred = jnp.subtract(*align_ranks(x.astype(_accumulator(x)), mean))
    return _affine(_over_root(centred, align_ranks(centred, variance)[1]), gain, bias, x.dtype)


def _over_root(x: Array, variance: Array) -> Array:
    return x * jax.lax.rsqrt(variance + EPSILON)


def _affine(x: Array, gain: Array, bias: Array | None, dtype) -> Array:
    x = jnp.multiply(*align_ranks(x, gain))
    return (x if bias is None else jnp.add(*align_ranks(x, bias))).astype(dtype)


def _accumulator(x: Array):
    return jnp.promote_types(x.dtype, jnp.float32)
