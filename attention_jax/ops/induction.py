"""Induction: attending to what followed the same token before (Olsson et al. 2022)."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def prefix_matching(
    weights: Float[Array, "batch layers heads t t"], tokens: Int[Array, "batch t"]
) -> Float[Array, "layers heads"]:
    """How much of each head's weight is on tokens that followed an earlier occurrence of the query's token.

    Of query i these are the keys j ≤ i with x_{j−1} = x_i. The mean over queries that have one; NaN where none has.
    """
    before = jnp.pad(tokens, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    index = jnp.arange(tokens.shape[-1])
    is_next = (before[:, None, :] == tokens[:, :, None]) & (index[None, None] <= index[None, :, None])
    count = jnp.sum(jnp.any(is_next, axis=-1))
    return jnp.sum(jnp.where(is_next[:, None, None], weights, 0), axis=(0, 3, 4)) / count
