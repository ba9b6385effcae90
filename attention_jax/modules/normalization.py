"""A Linen shell that owns the parameters of a norm."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from attention_jax.ops.normalization import batch_moments, batch_norm, layer_norm, rms_norm

NORMS = ("layer", "rms", "batch")
MOMENTUM = 0.99


class Norm(nn.Module):
    """A "layer", "rms" or "batch" norm with its gain and bias; of a batch norm `batch_stats` has running moments."""

    norm: str
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch t d"], valid: Bool[Array, "*batch t"], is_training: bool) -> Array:
        """The norm of `x`. A batch norm's moments are of `valid` tokens, not of padding; only training updates them."""
        size = x.shape[-1:]
        gain = self.param("gain", nn.initializers.ones, size, self.param_dtype)
        if self.norm == "rms":
            return rms_norm(x, gain)
        bias = self.param("bias", nn.initializers.zeros, size, self.param_dtype)
        if self.norm == "layer":
            return layer_norm(x, gain, bias)
        mean = self.variable("batch_stats", "mean", jnp.zeros, size)
        variance = self.variable("batch_stats", "variance", jnp.ones, size)
        if not is_training:
            return batch_norm(x, mean.value, variance.value, gain, bias)
        moments = batch_moments(x, valid)
        for running, now in zip((mean, variance), moments, strict=True):
            running.value = MOMENTUM * running.value + (1 - MOMENTUM) * now
        return batch_norm(x, *moments, gain, bias)
