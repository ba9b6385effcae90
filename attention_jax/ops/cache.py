"""The state that a decoder carries from token to token."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Cache(NamedTuple):
    """A pytree whose leaves all have the batch first.

    `memory` comes from the encoder, and is only read. `state` is each hypothesis's own. `cursor` counts the tokens that
    a sentence's hypotheses have read. `history` has what is kept of every token that was read, and is only added to.
    The hypotheses of a sentence share memory and history.
    """

    memory: Any
    state: Any
    cursor: Int[Array, " batch"]
    history: Any = None


def side_by_side(cache: Cache, texts: int) -> Cache:
    """The cache of `texts` hypotheses of each sentence, all alike.

    State gets one more axis, `[batch, texts, …]`. In history, `[…, room · texts, features]`, what is kept of token t of
    hypothesis i is entry t · texts + i.
    """
    state = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], texts, axis=1), cache.state)
    history = jax.tree.map(lambda leaf: jnp.repeat(leaf, texts, axis=-2), cache.history)
    return cache._replace(state=state, history=history)


def within_room(x: Float[Array, "batch ..."], cursor: Int[Array, " batch"], room: int) -> Float[Array, "batch ..."]:
    """x for texts whose next token fits into the cache, and NaN for the others, which would be wrong."""
    return jnp.where((cursor < room).reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.nan)


def grown(cache: Cache, memory: Any) -> Cache:
    """The cache with the room of its new `memory` `[batch, room]`; history's leaves are `[..., room, features]`."""
    more = memory.shape[-1] - cache.memory.shape[-1]
    widened = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0),) * (leaf.ndim - 2) + ((0, more), (0, 0))), cache.history)
    return cache._replace(memory=memory, history=widened)
