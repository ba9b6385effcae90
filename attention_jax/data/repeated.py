"""Random tokens that repeat: what follows can be told from what followed the same token before, and by nothing else."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

FIRST = 1  # the least token; 0 is padding elsewhere


def repeated(key: Key[Array, ""], period: Int[Array, ""] | int, length: int, vocabulary: int) -> Int[Array, " length"]:
    """x₁ … x_p x₁ … x_p x₁ …: p tokens, drawn uniformly of `vocabulary` but 0, again and again; p may be traced."""
    drawn = jax.random.randint(key, (length,), FIRST, vocabulary)
    return drawn[jnp.arange(length) % period]
