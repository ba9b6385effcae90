"""What a decoder carries from word to word."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Cache(NamedTuple):
    """An explicit pytree, batch first in every leaf.

    `memory` is the encoder's, never written to, and shared by the hypotheses of a sentence; `state` is each
    hypothesis's own; `cursor` counts the words that a hypothesis has read.
    """

    memory: Any
    state: Any
    cursor: Int[Array, " batch"]


def within_room(x: Float[Array, "batch ..."], cursor: Int[Array, " batch"], room: int) -> Float[Array, "batch ..."]:
    """x of the texts whose next word the cache has room for; NaN of the others, never silently wrong."""
    return jnp.where((cursor < room).reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.nan)


def grown(cache: Cache, memory: Any) -> Cache:
    """The cache with as much room as its new `memory` `[batch, room]`; rooms are the last axis but one of the state."""
    more = memory.shape[-1] - cache.memory.shape[-1]
    widened = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0),) * (leaf.ndim - 2) + ((0, more), (0, 0))), cache.state)
    return Cache(memory, widened, cache.cursor)
