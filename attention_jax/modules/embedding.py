"""A table of vectors, one for each token."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Embedding(nn.Embed):
    """Row x of the table E for a token x, rounded to `dtype` once it is read.

    The gradient of a token is then a sum over its places in the parameters' type: one in bfloat16 stays where it is as
    soon as it is some 256 times what is added to it.
    """

    def __call__(self, inputs: Int[Array, "..."]) -> Float[Array, "... d"]:
        return jnp.take(self.embedding, inputs, axis=0).astype(self.dtype)
