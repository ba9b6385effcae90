"""What the kernels of `flex` are given: functions of one pair of a query and a key, and arrays to be cut into blocks.

Every array gets the rank of the scores and is padded to whole blocks; rules forbid what is padding. From what rules
read of queries and keys follows, by interval arithmetic, which blocks are empty, partial or full.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from attention_jax.backends.flex.walks import EMPTY, FULL, PARTIAL, Drops, Inputs, Plan
from attention_jax.ops.attention import Attention, Relative
from attention_jax.ops.dropout import Dropout, gain, hashed, threshold
from attention_jax.ops.intervals import Interval, hull, interval
from attention_jax.ops.masking import Rule, fitting_rule

HAS_AXES = {"text": (False, False), "query": (True, False), "key": (False, True), "pair": (True, True)}


class Bias(NamedTuple):
    """A bias for scores: a function of `arrays`, numbers `[..., 1, n]`, and positions `[..., Q, 1]`, `[..., 1, K]`."""

    apply: Callable | None = None
    arrays: tuple[Array, ...] = ()


def bias_of(query: Array, relative: Relative) -> Bias:
    """The bias of an encoding; positions get axes of size 1 where numbers have heads."""
    if relative.pairs is None:
        return Bias()
    numbers, apply = relative.pairs(relative.params, query.shape[-3] if query.ndim > 2 else 1)
    heads = tuple(range(-numbers.ndim, -1))
    queries, keys = (jnp.expand_dims(jnp.asarray(at), heads) for at in (relative.queries, relative.keys))
    return Bias(apply, (numbers[..., None, :], _spread(queries, "query"), _spread(keys, "key")))


def prepared(
    query: Array, key: Array, value: Array, attention: Attention, bias: Bias, blocks: tuple[int, int]
) -> tuple[Plan, Inputs]:
    """The plan and the arrays of the kernels. Raises ValueError for a mask that does not fit the scores."""
    lengths = query.shape[-2], key.shape[-2]
    batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], *(array.shape[:-2] for array in bias.arrays))
    sizes = min(blocks[0], _least_block(lengths[0])), min(blocks[1], _least_block(lengths[1]))
    counts = -(-lengths[0] // sizes[0]), -(-lengths[1] // sizes[1])
    whole = sizes[0] * counts[0], sizes[1] * counts[1]
    rules = _rules((*fitting_rule(attention.mask, (*batch, *lengths)).rules, *_ends(lengths, whole)))
    rank = len(batch) + 2
    fit = functools.partial(_fitted, rank, whole)
    masks = tuple(
        tuple(fit(_spread(array, of), of, "edge") for array, of in zip(rule.arrays, rule.reads, strict=True))
        for rule in rules
    )
    inputs = Inputs(
        query=fit(query, "query"),
        key=_ranked(_padded(key, whole[1], -2), rank),
        value=_ranked(_padded(value, whole[1], -2), rank),
        kinds=_ranked(kinds_of(rules, masks, sizes, counts), rank),
        masks=masks,
        drops=attention.dropout and _drops(attention.dropout, batch),
    )
    if bias.apply is not None:
        numbers, *positions = bias.arrays
        inputs = inputs._replace(numbers=fit(numbers, "text"), positions=tuple(map(fit, positions, ("query", "key"))))
    bend, pairs = attention.normalizer.stream.bend, tuple((rule.allows, rule.reads) for rule in rules)
    return Plan(attention.score.apply, bend, bias.apply, pairs, batch, sizes, counts), inputs


def kinds_of(
    rules: list[Rule], masks: tuple[tuple[Array, ...], ...], sizes: tuple[int, int], counts: tuple[int, int]
) -> Int[Array, "*batch i j"]:
    """Which blocks are empty, partial, full: of the first no pair may attend, of the last every one may.

    What is not sure is called partial. `masks` are the arrays of the `rules`, in whole blocks.
    """
    rank = max((array.ndim for arrays in masks for array in arrays), default=2)
    indices = []
    for count, size, of in zip(counts, sizes, ("query", "key"), strict=True):
        first = _ranked(_spread(jnp.arange(count) * size, of), rank)
        indices.append(Interval(first, first + size - 1))

    def of_blocks(array, of):
        for axis, has_axis, size in zip((-2, -1), HAS_AXES[of], sizes, strict=True):
            array = hull(array, axis, size) if has_axis else array
        return interval(array)

    found = Interval(jnp.ones((1,) * rank, bool), jnp.ones((1,) * rank, bool))
    for rule, arrays in zip(rules, masks, strict=True):
        found &= rule.allows(*indices, *map(of_blocks, arrays, rule.reads))
    kinds = jnp.where(found.low, FULL, jnp.where(found.high, PARTIAL, EMPTY))
    return jnp.broadcast_to(kinds, (*kinds.shape[:-2], *counts))


def _rules(rules: tuple[Rule, ...]) -> list[Rule]:
    """The rules, with truths as numbers: 0 is false. Kernels hold no arrays of truths."""

    found = []
    for rule in rules:
        are_truths = tuple(array.dtype == jnp.bool_ for array in rule.arrays)
        arrays = tuple(array.astype(jnp.int32) if array.dtype == jnp.bool_ else array for array in rule.arrays)
        found.append(Rule(functools.partial(_of_numbers, rule.allows, are_truths), arrays, rule.reads))
    return found


def _of_numbers(allows: Callable, are_truths: tuple[bool, ...], query, key, *numbers):
    return allows(query, key, *(n != 0 if is_so else n for n, is_so in zip(numbers, are_truths, strict=True)))


def _ends(lengths: tuple[int, int], whole: tuple[int, int]) -> list[Rule]:
    """Rules that forbid the queries and keys that only fill the last blocks."""
    named = zip((_before_last_query, _before_last_key), lengths, whole, strict=True)
    return [Rule(allows, (jnp.asarray(n),), ("text",)) for allows, n, padded in named if n < padded]


def _before_last_query(query, key, count):
    return query < count


def _before_last_key(query, key, count):
    return key < count


def _drops(dropout: Dropout, batch: tuple[int, ...]) -> Drops:
    """The hash of `ops.dropout` up to the axes of queries and keys, which kernels add."""
    row = jnp.asarray(dropout.row).astype(jnp.uint32)
    starts: tuple[int | Array, ...] = (row, *[0] * (len(batch) - 1))
    bits = hashed(dropout.key, batch, starts[: len(batch)])
    one = (1,) * (len(batch) + 2)
    first = row if not batch else jnp.uint32(0)  # `row` counts along the first axis of the weights
    return Drops(bits[..., None, None], *(a.reshape(one) for a in (first, threshold(dropout.rate), gain(dropout.rate))))


def _spread(array: Array, of: str) -> Array:
    """What is read of a text, query, key or pair as `[..., Q or 1, K or 1]`."""
    has_rows, has_columns = HAS_AXES[of]
    array = array if has_columns else array[..., None]
    return array if has_rows else array[..., None, :]


def _fitted(rank: int, whole: tuple[int, int], array: Array, of: str, mode: str = "constant") -> Array:
    """The array with this rank, padded to whole blocks."""
    for axis, has_axis, size in zip((-2, -1), HAS_AXES[of], whole, strict=True):
        array = _padded(array, size, axis, mode) if has_axis else array
    return _ranked(array, rank)


def _padded(array: Array, size: int, axis: int, mode: str = "constant") -> Array:
    pads = [(0, 0)] * array.ndim
    pads[axis] = (0, size - array.shape[axis])
    return array if pads[axis] == (0, 0) else jnp.pad(array, pads, mode=mode)


def _least_block(length: int) -> int:
    """What all fits in: a power of 2, 16 or more, as products on GPUs need."""
    return max(16, 1 << (length - 1).bit_length())


def _ranked(array: Array, rank: int) -> Array:
    return array.reshape((1,) * (rank - array.ndim) + array.shape)
