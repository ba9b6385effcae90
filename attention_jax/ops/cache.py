"""The state that a decoder carries from token to token."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Cache(NamedTuple):
    """A pytree whose leaves all have the batch first.

    `memory` comes from the encoder; it is only read, and the hypotheses of a sentence share it. `state` is each
    hypothesis's own, and `cursor` counts the tokens that a hypothesis has read.
    """

    memory: Any
    state: Any
    cursor: Int[Array, " batch"]


def within_room(x: Float[Array, "batch ..."], cursor: Int[Array, " batch"], room: int) -> Float[Array, "batch ..."]:
    """x for texts whose next token fits into the cache, and NaN for the others, which would be wrong."""
    return jnp.where((cursor < room).reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.nan)


def grown(cache: Cache, memory: Any) -> Cache:
    """The cache with the room of its new `memory` `[batch, room]`; the state's leaves are `[..., room, features]`."""
    more = memory.shape[-1] - cache.memory.shape[-1]
    widened = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0),) * (leaf.ndim - 2) + ((0, more), (0, 0))), cache.state)
    return Cache(memory, widened, cache.cursor)
