"""Dropout whose mask is a hash of a key and of logical indices, and whose rate may be traced.

Threefry bits cost a fifth of a training step on a CPU; a hash costs a few integer operations for each
element. Whether an element is dropped depends on its index alone, so that an array that is computed in
blocks, of any size, gets the same mask.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, UInt32

Rate = Float[Array, ""] | float
_BITS = 24  # a float32 holds every integer up to 2^24, so that the threshold is exact


class Dropout(NamedTuple):
    """A random key and the probability of dropping an element, 0 ≤ rate < 1. Evaluation has None instead.

    `row` is the logical index of the first row, on the first axis of whatever is dropped, where arrays hold a part of a
    batch: parts then get the masks that they would have in the whole.
    """

    key: Key[Array, ""]
    rate: Rate
    row: int | Array = 0

    def fold(self, number: int | Array) -> "Dropout":
        """The same rate with another key, for the site or time step of that number."""
        return self._replace(key=jax.random.fold_in(self.key, number))


def drop(x: Float[Array, "..."], dropout: Dropout | None, start: tuple[int | Array, ...] = ()) -> Float[Array, "..."]:
    """x · keep / (1 − rate) (Srivastava et al. 2014, §10: scaled in training); x itself if `dropout` is None.

    `start` is the logical index of x's first element on the last axes, where x is a block of a larger array.
    """
    if dropout is None:
        return x
    return (x * multiplier(dropout, x.shape, start=start)).astype(x.dtype)  # rounded once


def multiplier(
    dropout: Dropout, shape: tuple[int, ...], dtype=jnp.float32, start: tuple[int | Array, ...] = ()
) -> Float[Array, "..."]:
    """The factor of `drop`: 0 for dropped elements, 1 / (1 − rate) for kept ones."""
    return jnp.where(keep(dropout, shape, start), gain(dropout.rate), 0).astype(dtype)


def keep(dropout: Dropout, shape: tuple[int, ...], start: tuple[int | Array, ...] = ()) -> Bool[Array, "..."]:
    """Which elements are kept; `start` is as in `drop`."""
    starts = (0,) * (len(shape) - len(start)) + tuple(start)
    from_row = tuple(first + dropout.row if axis == 0 else first for axis, first in enumerate(starts))
    return is_kept(hashed(dropout.key, shape, from_row), threshold(dropout.rate))


def hashed(key: Key[Array, ""], shape: tuple[int, ...], start: tuple[int | Array, ...] = ()) -> UInt32[Array, "..."]:
    """32 hashed bits for each element, from the key and the element's index along every axis."""
    starts = (0,) * (len(shape) - len(start)) + tuple(start)
    bits = jnp.zeros((1,) * len(shape), jnp.uint32)
    for word in jax.random.key_data(key).ravel():
        bits = _mix(bits ^ word)
    for axis, (size, first) in enumerate(zip(shape, starts, strict=True)):
        index = jax.lax.broadcasted_iota(jnp.uint32, (1,) * axis + (size,) + (1,) * (len(shape) - axis - 1), axis)
        bits = joined(bits, index + jnp.asarray(first).astype(jnp.uint32))
    return jnp.broadcast_to(bits, shape)


def joined(bits: UInt32[Array, "..."], index: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """The bits of `hashed` for one more axis, from those for the axes before it and the index along this one."""
    return _mix(bits ^ (index + jnp.uint32(1)) * jnp.uint32(0x9E3779B1))


def threshold(rate: Rate) -> UInt32[Array, ""]:
    """The least of a hash's first bits, of an element that is kept."""
    return (jnp.asarray(rate, jnp.float32) * (1 << _BITS)).astype(jnp.uint32)


def is_kept(bits: UInt32[Array, "..."], threshold: UInt32[Array, "..."]) -> Bool[Array, "..."]:
    """Whether elements of these hashed bits are kept."""
    return (bits >> (32 - _BITS)) >= threshold


def gain(rate: Rate) -> Float[Array, ""]:
    """1 / (1 − rate), what kept elements are multiplied by; 0 for a rate of 1."""
    rate = jnp.asarray(rate, jnp.float32)
    return jnp.where(rate < 1, 1 / jnp.where(rate < 1, 1 - rate, 1), 0)


def _mix(bits: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """The 32-bit finaliser `lowbias32` (Wellons 2018): every input bit flips every output bit about half the time."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)
