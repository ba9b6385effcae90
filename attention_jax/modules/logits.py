"""A model's last matrix product. It accumulates in float32, and its result is not rounded before loss and decoding."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def logits_layer(vocabulary: int, dtype: DTypeLike, param_dtype: DTypeLike) -> nn.Dense:
    """x W + b for each token of the vocabulary, in float32, whatever `dtype` x and W are rounded to."""
    return nn.Dense(vocabulary, dtype=dtype, param_dtype=param_dtype, dot_general=_accumulated)


def tied_logits(embedding: nn.Embed, x: Float[Array, "... d"]) -> Float[Array, "... v"]:
    """x Eᵀ with the embedding's own matrix, in float32, whatever dtype x and E are rounded to."""
    rounded, table = (array.astype(embedding.dtype) for array in (x, embedding.embedding))
    return jnp.dot(rounded, table.T, preferred_element_type=_accumulator(rounded))


def _accumulated(x: Array, kernel: Array, axes, precision=None) -> Array:
    return jax.lax.dot_general(x, kernel, axes, precision=precision, preferred_element_type=_accumulator(x))


def _accumulator(x: Array):
    return jnp.promote_types(x.dtype, jnp.float32)
