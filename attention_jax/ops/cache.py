"""The state that a decoder carries from token to token."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Cache(NamedTuple):
    """A pytree whose leaves all have the batch first.

    `memory` comes from the encoder, and is only read. `state` is each hypothesis's own. `cursor` counts the tokens that
    a sentence's hypotheses have read. `history` has what is kept of every token that was read, and is only added to.
    The hypotheses of a sentence share memory and history. A model of layers has history and state a layer, as its
    layers make them (`Held`).
    """

    memory: Any
    state: Any
    cursor: Int[Array, " batch"]
    history: Any = None


class Held(NamedTuple):
    """What one layer keeps of the tokens that it has read: its part of a cache's history, and of its state.

    A layer makes it empty, reads it and gives it back; nobody else knows what is in it. Leaves have the batch first.
    History's are `[..., room, features]`: what is kept of each token. State's may have any shape: a size that does not
    grow with the text, or something that every new token changes for all the tokens before it.
    """

    history: Any = None
    state: Any = None


def by_layer(history: Sequence[Any], state: Sequence[Any]) -> list[Held]:
    """What each layer holds, of a cache's `history` and `state` of all layers."""
    return [Held(*own) for own in zip(history, state, strict=True)]


def of_layers(held: Sequence[Held]) -> tuple[tuple, tuple]:
    """History and state of all layers; the inverse of `by_layer`."""
    return tuple(own.history for own in held), tuple(own.state for own in held)


def written(history: Any, new: Any, first: Int[Array, " batch"]) -> Any:
    """History with what is kept of new tokens, `[..., tokens, features]`, from each text's place `first` on.

    Tokens that it has no room for are left out. Where all texts write at one place, nothing else is touched.
    """
    room, count = (jax.tree.leaves(tree)[0].shape[-2] for tree in (history, new))
    agree = jnp.all(first == first[0]) & (first[0] + count <= room)
    return jax.lax.cond(agree, _together, functools.partial(_apart, count, room), first, new, history)


def _together(first: Array, new: Any, history: Any) -> Any:
    return jax.tree.map(lambda n, h: jax.lax.dynamic_update_slice_in_dim(h, n, first[0], -2), new, history)


def _apart(count: int, room: int, first: Array, new: Any, history: Any) -> Any:
    index_BxR = jnp.arange(room)[None] - first[:, None]  # of the new token for each place of the history

    def write(n, h):
        index = index_BxR.reshape(len(first), *(1,) * (h.ndim - 3), room, 1)
        placed = jnp.take_along_axis(n, jnp.clip(index, 0, count - 1), axis=-2)
        return jnp.where((index >= 0) & (index < count), placed, h)

    return jax.tree.map(write, new, history)


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


def grown(cache: Cache, empty: Cache) -> Cache:
    """What `cache` has, in the larger room of an `empty` one of the same model."""
    fill = lambda held, room: jax.lax.dynamic_update_slice(room, held, (0,) * room.ndim)  # noqa: E731
    return jax.tree.map(fill, cache._replace(memory=None), empty._replace(memory=None))._replace(memory=empty.memory)
