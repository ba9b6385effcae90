"""Attention block by block: memory grows with queries + keys, not with their product; time is as in the reference.

Queries and keys are cut into blocks, which are folded together (`folding`). Masks, biases and dropout are made for one
block at a time: from rules, from positions, and from hashed logical indices.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attention_jax.backends.folding import Job, Keys, Queries, folded
from attention_jax.backends.record import Call, first_of
from attention_jax.ops.attention import Attended, Attention
from attention_jax.ops.masking import fitting_rule
from attention_jax.ops.shapes import require_batch, require_same_size


def refusal(attention: Attention, call: Call | None = None) -> str:
    """Why this backend cannot do what is asked; "" if it can. It takes every dtype and length."""
    del call
    reasons = {
        "it never makes all weights": attention.with_weights or attention.replacement is not None,
        "it never makes the maps of all heads, which this family of attention reads": attention.maps.do_something,
        "a score by the positions of keys needs all keys at once": attention.score.room is not None,
        "this normalizer needs whole rows": attention.normalizer.stream is None,
        "a bias that is an array is as large as the weights that it avoids (give a function of positions; what "
        "family='selective' takes from scores is such an array)": (attention.bias is not None),
    }
    return first_of(reasons)


def pooled(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    attention: Attention,
    blocks: tuple[int, int],
    fold: Callable[[Job, Queries, Keys], Array] = folded,
    parts: int = 1,
) -> Attended:
    """The attention that the record asks for, in blocks of `blocks` = (queries, keys) at most.

    `fold` puts the blocks together, of which there is a multiple of `parts`.
    """
    require_batch(key=key, value=value)
    require_same_size(-2, key=key, value=value)
    if not query.shape[-2] or not key.shape[-2]:
        batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        return Attended(jnp.zeros((*batch, query.shape[-2], value.shape[-1]), value.dtype), None)
    batch, relative = np.broadcast_shapes(query.shape[:-2], key.shape[:-2]), attention.relative
    rule = fitting_rule(attention.mask, (*batch, query.shape[-2], key.shape[-2]))
    shared = attention._replace(mask=None, relative=relative._replace(queries=None, keys=None))
    of_queries, of_keys = (
        Cut.of(array.shape[-2], most, parts) for array, most in zip((query, key), blocks, strict=True)
    )
    found = fold(
        Job(shared, rule, key.shape[-2]),
        Queries(of_queries(query), of_queries.indices, of_queries.each(relative.queries)),
        Keys(of_keys(key), of_keys(value), of_keys.indices, of_keys.each(relative.keys)),
    )
    whole = jnp.moveaxis(found, 0, -3)  # [..., blocks, q, V]
    whole = whole.reshape(*whole.shape[:-3], -1, whole.shape[-1])
    return Attended(whole[..., : query.shape[-2], :], None)


class Cut(NamedTuple):
    """How an axis is cut: into so many blocks of `size`, the last filled with copies of the last entry."""

    blocks: int
    size: int

    @classmethod
    def of(cls, length: int, most: int, parts: int) -> "Cut":
        """Blocks of at most so many, as many as have a multiple of `parts`."""
        blocks = parts * -(-length // (parts * most))
        return cls(blocks, -(-length // blocks))

    @property
    def indices(self) -> Int[Array, "blocks size"]:
        return jnp.arange(self.blocks * self.size).reshape(self)

    def each(self, positions: Any) -> Any:
        """Positions, or other numbers of every token: arrays `[..., n]`."""
        return jax.tree.map(lambda array: self(array, -1), positions)

    def __call__(self, array: Array, axis: int = -2) -> Array:
        """[..., n, …] → [blocks, ..., size, …]."""
        axis += array.ndim
        if missing := self.blocks * self.size - array.shape[axis]:
            last = jax.lax.slice_in_dim(array, -1, None, axis=axis)
            array = jnp.concatenate([array, jnp.repeat(last, missing, axis=axis)], axis=axis)
        parts = array.reshape(*array.shape[:axis], *self, *array.shape[axis + 1 :])
        return jnp.moveaxis(parts, axis, 0)
