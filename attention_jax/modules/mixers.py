"""Mixers: layers in which the tokens of a text see one another, instead of self-attention."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from attention_jax.modules.recurrent import RecurrentEncoder
from attention_jax.ops.mixing import convolution


class Convolution(nn.Module):
    """Sums tokens at most `reach` positions away, each distance by its own matrix; only those before if `is_causal`."""

    width: int
    reach: int
    is_causal: bool
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "batch t d"], valid: Bool[Array, "batch t"]) -> Float[Array, "batch t d"]:
        size = self.reach + 1 if self.is_causal else 2 * self.reach + 1
        glorot = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        kernel = self.param("kernel", glorot, (size, self.width, self.width), self.param_dtype).astype(self.dtype)
        return convolution(jnp.where(valid[..., None], x, 0), kernel, is_causal=self.is_causal)


class Recurrence(nn.Module):
    """A gated recurrent unit over the tokens; if not causal, two of half the width, one from either end."""

    width: int
    reach: int  # of other mixers: a state may carry from any token
    is_causal: bool
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "batch t d"], valid: Bool[Array, "batch t"]) -> Float[Array, "batch t d"]:
        features = self.width if self.is_causal else self.width // 2
        sizes = ("gru", self.width, features, 1, not self.is_causal)
        return RecurrentEncoder(*sizes, self.dtype, self.param_dtype, name="layer")(x, valid, None)[0]


ATTENTION, WINDOW = "attention", "window"  # self-attention; the same to tokens at most `reach` positions away
MIXERS: dict[str, Callable[..., nn.Module]] = {"gru": Recurrence, "convolution": Convolution}
ALL = (ATTENTION, WINDOW, *MIXERS)
