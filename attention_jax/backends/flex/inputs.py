"""What the kernels of `flex` are given: functions of one pair of a query and a key, and arrays to be cut into blocks.

Every array gets the rank of the scores and is padded to whole blocks; rules forbid what is padding. From what rules
read of queries and keys follows, by interval arithmetic, which blocks are empty, partial or full.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from attention_jax.backends.flex.walks import CUTS, EMPTY, EVEN, FULL, PARTIAL, Drops, Inputs, Lengths, Plan
from attention_jax.ops.attention import Relative
from attention_jax.ops.dropout import Dropout, gain, hashed, threshold
from attention_jax.ops.intervals import Interval, hull, interval
from attention_jax.ops.masking import Mask, Rule, fitting_rule


class Bias(NamedTuple):
    """A bias for scores: a function of `arrays`, numbers `[..., 1, n]`, and positions `[..., Q, 1]`, `[..., 1, K]`.

    `which` is as in `PairBias`.
    """

    apply: Callable | None = None
    arrays: tuple[Array, ...] = ()
    which: Callable[[Array], Array] | None = None


class Asked(NamedTuple):
    """What is asked of the kernels; `score`, `scale` and `bend` are as in `Plan`."""

    score: Callable[[Array, Array], Array]
    scale: float | None
    bend: Callable[[Array], Array]
    bias: Bias
    mask: Mask | None
    dropout: Dropout | None


def bias_of(query: Array, relative: Relative) -> Bias:
    """The bias of an encoding; positions get axes of size 1 where numbers have heads."""
    if relative.pairs is None:
        return Bias()
    numbers, apply, which = relative.pairs(relative.params, query.shape[-3] if query.ndim > 2 else 1)
    heads = tuple(range(-numbers.ndim, -1))
    queries, keys = (jnp.expand_dims(jnp.asarray(at), heads) for at in (relative.queries, relative.keys))
    return Bias(apply, (numbers[..., None, :], _spread(queries, "query"), _spread(keys, "key")), which)


def prepared(query: Array, key: Array, value: Array, asked: Asked, blocks: tuple[int, int]) -> tuple[Plan, Inputs]:
    """The plan and the arrays of the kernels. Raises ValueError for a mask that does not fit the scores."""
    lengths, bias = Lengths(query.shape[-2], key.shape[-2]), asked.bias
    batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], *(array.shape[:-2] for array in bias.arrays))
    sizes, turned = (_sizes(these, lengths) for these in (blocks, blocks[::-1]))
    whole = Lengths(*map(_filled, lengths, sizes, turned))
    fit = functools.partial(_fitted, whole, len(batch) + 2)
    mask = fitting_rule(asked.mask, (*batch, *lengths))
    rules = [_fitted_rule(rule, fit) for rule in (*mask.rules, *_ends(lengths, whole))]
    of_pairs = tuple((rule.allows, rule.reads) for rule in rules)
    plan = Plan(asked.score, asked.bend, asked.scale, bias.apply, bias.which, of_pairs, batch, whole, sizes, turned)
    inputs = Inputs(
        query=fit(query, "query"),
        key=fit(key, "features"),
        value=fit(value, "features"),
        kinds=None,
        masks=tuple(rule.arrays for rule in rules),
        drops=asked.dropout and _drops(asked.dropout, batch),
    )
    if bias.apply is not None:
        numbers, *positions = map(fit, bias.arrays, ("text", "query", "key"))
        inputs = inputs._replace(numbers=numbers, positions=tuple(positions))
    return plan, inputs._replace(kinds=kinds_of(plan, inputs))


def turned(plan: Plan, inputs: Inputs) -> tuple[Plan, Inputs]:
    """The same for a walk over queries: its blocks of keys are as long as those of queries are in one over keys."""
    plan = plan._replace(sizes=plan.turned, turned=plan.sizes)
    return plan, inputs._replace(kinds=kinds_of(plan, inputs))


def kinds_of(plan: Plan, inputs: Inputs) -> Int[Array, "*batch i j"]:
    """Which blocks are empty, partial, full, even: of the first no pair may attend, of full ones every one may.

    What is not sure is called partial.
    """
    rank, indices = len(plan.batch) + 2, []
    for of, count, size in zip(("query", "key"), plan.counts, plan.sizes, strict=True):
        first = _ranked(_spread(jnp.arange(count) * size, of), rank)
        indices.append(Interval(first, first + size - 1))

    def of_blocks(array: Array, of: str) -> Interval:
        found = interval(array)
        for axis, name in enumerate(CUTS[of], start=-2):
            found = hull(found, axis, getattr(plan.sizes, name)) if name else found
        return found

    found = interval(jnp.ones((1,) * rank, bool))
    for (allows, reads), arrays in zip(plan.rules, inputs.masks, strict=True):
        found &= allows(*indices, *map(of_blocks, arrays, reads))
    full: int | Array = FULL
    if plan.which is not None:
        queries, keys = map(of_blocks, inputs.positions, ("query", "key"))
        nearest, farthest = (plan.which(distance) for distance in (keys.low - queries.high, keys.high - queries.low))
        full = jnp.where(nearest == farthest, EVEN + nearest, FULL)
    kinds = jnp.where(found.low, full, jnp.where(found.high, PARTIAL, EMPTY))
    return jnp.broadcast_to(kinds, (*kinds.shape[:-2], *plan.counts))


def _fitted_rule(rule: Rule, fit: Callable[[Array, str], Array]) -> Rule:
    """The rule, with arrays as kernels take them: whole blocks, and truths as numbers, of which 0 is false."""
    are_truths = tuple(array.dtype == jnp.bool_ for array in rule.arrays)
    numeric = [array.astype(jnp.int32) if array.dtype == jnp.bool_ else array for array in rule.arrays]
    arrays = tuple(fit(_spread(array, of), of) for array, of in zip(numeric, rule.reads, strict=True))
    return Rule(functools.partial(_of_numbers, rule.allows, are_truths), arrays, rule.reads)


def _of_numbers(allows: Callable, are_truths: tuple[bool, ...], query, key, *numbers):
    return allows(query, key, *(n != 0 if is_so else n for n, is_so in zip(numbers, are_truths, strict=True)))


def _ends(lengths: Lengths, whole: Lengths) -> list[Rule]:
    """Rules that forbid the queries and keys that only fill the last blocks."""
    named = zip((_is_a_query, _is_a_key), lengths, whole, strict=True)
    return [Rule(allows, (jnp.asarray(length),), ("text",)) for allows, length, all_told in named if length < all_told]


def _is_a_query(query, key, count):
    return query < count


def _is_a_key(query, key, count):
    return key < count


def _drops(dropout: Dropout, batch: tuple[int, ...]) -> Drops:
    """The hash of `ops.dropout` up to the axes of queries and keys, which kernels add."""
    row = jnp.asarray(dropout.row).astype(jnp.uint32)
    starts: tuple[int | Array, ...] = (row, *[0] * (len(batch) - 1))
    bits = hashed(dropout.key, batch, starts[: len(batch)])
    first = jnp.uint32(0) if batch else row  # `row` counts along the first axis of the weights
    alone = (first, threshold(dropout.rate), gain(dropout.rate))
    return Drops(bits[..., None, None], *(_ranked(number, len(batch) + 2) for number in alone))


def _spread(array: Array, of: str) -> Array:
    """What is read of a text, query, key or pair as `[..., Q or 1, K or 1]`."""
    rows, columns = CUTS[of]
    array = array if columns else array[..., None]
    return array if rows else array[..., None, :]


def _fitted(whole: Lengths, rank: int, array: Array, role: str) -> Array:
    """The array with this rank and whole blocks; the last is filled with copies of its last row or column."""
    pads = [(0, 0)] * array.ndim
    for axis, name in enumerate(CUTS[role], start=-2):
        pads[axis] = (0, -array.shape[axis] % getattr(whole, name) if name else 0)
    return _ranked(jnp.pad(array, pads, mode="edge") if any(map(any, pads)) else array, rank)


def _sizes(blocks: tuple[int, int], lengths: Lengths) -> Lengths:
    """Blocks that are no longer than what there is."""
    return Lengths(*(min(size, _enough(length)) for size, length in zip(blocks, lengths, strict=True)))


def _filled(length: int, *sizes: int) -> int:
    """The least length from this one on that is whole blocks of every size."""
    multiple = math.lcm(*sizes)
    return -(-length // multiple) * multiple


def _enough(length: int) -> int:
    """A block for all of a length: a power of 2, and 16 at least, as products on GPUs need."""
    return max(16, 1 << (length - 1).bit_length())


def _ranked(array: Array, rank: int) -> Array:
    return array.reshape((1,) * (rank - array.ndim) + array.shape)
