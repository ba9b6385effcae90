"""Masks: who may attend to whom, and the softmax that respects it.

A mask is boolean, True = may attend, and broadcasts to the scores `[..., Q, K]`. It has no batch axes, or as many as
the scores, some perhaps of size 1: an axis of examples is never taken for one of heads. A mask is an array or a
`MaskRule`, a function of query and key indices, of which any block can be made without the whole. The constructors
below give rules; `materialize` makes the array.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attention_jax.ops.shapes import align_ranks, require_batch_count, require_broadcast


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["rule", "num_queries", "num_keys"]
)
@dataclass(frozen=True)
class MaskRule:
    """`rule(query_index, key_index, *arrays)` → may attend, elementwise over integer indices that broadcast.

    `num_queries` is None for a rule that is the same for every query.
    """

    rule: Callable
    arrays: tuple
    num_queries: int | None
    num_keys: int

    def block(self, query_index: Int[Array, " q"], key_index: Int[Array, " k"]) -> Bool[Array, "*batch q k"]:
        """The mask for these queries and keys alone."""
        return self.rule(query_index[:, None], key_index[None, :], *self.arrays)


Mask = MaskRule | Bool[Array, "*batch q k"]


def valid_lens_mask(lengths: Int[Array, "*batch"], num_keys: int, *, per_query: bool = False) -> MaskRule:
    """Attend to the first `lengths` keys: `[...] → [..., 1, K]`, or with `per_query` `[..., Q] → [..., Q, K]`."""
    lengths = jnp.asarray(lengths)
    if per_query:
        return MaskRule(_within_query_length, (lengths,), lengths.shape[-1], num_keys)
    return MaskRule(_within_length, (lengths,), None, num_keys)


def causal_mask(num_queries: int, num_keys: int, offset: int | Int[Array, "*batch"] = 0) -> MaskRule:
    """Attend to keys at or before the query: k ≤ q + offset, with `offset` keys in a cache before the first query."""
    return _with_numbers(_causal, (offset,), num_queries, num_keys)


def window_mask(
    num_queries: int, num_keys: int, window: int | Int[Array, "*batch"], offset: int | Int[Array, "*batch"] = 0
) -> MaskRule:
    """Attend to keys at most `window` positions away, on either side: |q + offset − k| ≤ window."""
    return _with_numbers(_near, (window, offset), num_queries, num_keys)


def prefix_mask(
    num_queries: int, num_keys: int, prefix: int | Int[Array, "*batch"], offset: int | Int[Array, "*batch"] = 0
) -> MaskRule:
    """Attend to the first `prefix` keys, and beyond them to keys at or before the query (prefix language model)."""
    return _with_numbers(_prefix, (prefix, offset), num_queries, num_keys)


def segment_mask(query_segments: Int[Array, "*batch q"], key_segments: Int[Array, "*batch k"]) -> MaskRule:
    """Attend to keys of the query's own segment in a packed row."""
    arrays = (jnp.asarray(query_segments), jnp.asarray(key_segments))
    if arrays[0].shape[:-1] != arrays[1].shape[:-1]:
        raise ValueError(f"query_segments {arrays[0].shape} and key_segments {arrays[1].shape} differ in batch axes.")
    return MaskRule(_same_segment, arrays, arrays[0].shape[-1], arrays[1].shape[-1])


def keys_mask(valid: Bool[Array, "*batch k"]) -> MaskRule:
    """Attend to the keys that are `valid` (not padding): `[..., K] → [..., 1, K]`."""
    return MaskRule(_valid, (jnp.asarray(valid),), None, valid.shape[-1])


def near_mask(centre: Float[Array, "*batch q"], window: float, num_keys: int) -> MaskRule:
    """Attend to keys at most `window` positions from each query's centre, which need not be a whole number."""
    if window < 1:
        raise ValueError(f"window={window}: needs 1 or more.")
    return MaskRule(_near_centre, (jnp.asarray(centre), jnp.asarray(window)), centre.shape[-1], num_keys)


def with_axes(mask: Mask, count: int) -> Mask:
    """The mask with `count` axes of size 1, for heads, before its queries: `[..., Q, K] → [..., 1, Q, K]`.

    A rule stays a rule.
    """
    axes = tuple(range(-2 - count, -2))
    if isinstance(mask, MaskRule):
        return MaskRule(_WithAxes(mask.rule, axes), mask.arrays, mask.num_queries, mask.num_keys)
    return jnp.expand_dims(mask, axes)


def combine(*masks: Mask | None) -> Mask | None:
    """The mask of what all of them allow, None if none is given: a rule if all are rules, else an array."""
    present = tuple(mask for mask in masks if mask is not None)
    if len(present) < 2:
        return present[0] if present else None
    rules = tuple(mask for mask in present if isinstance(mask, MaskRule))
    if len(rules) == len(present):
        return _combine_rules(rules)
    return _conjunction([materialize(mask) for mask in present])


def as_rule(mask: Mask | None, num_queries: int, num_keys: int) -> MaskRule:
    """The mask as a rule: of an array, a rule that looks it up; of None, a rule that allows all keys."""
    if isinstance(mask, MaskRule):
        return mask
    if mask is None:
        return MaskRule(_all, (), None, num_keys)
    return MaskRule(_looked_up, (materialize(mask),), num_queries if mask.shape[-2] > 1 else None, num_keys)


class Part(NamedTuple):
    """One of the masks that a mask is the conjunction of: what its constructor says, and with what values.

    `kind` is causal, window, lengths (of keys), lengths by query, keys, prefix, segments, near, array, or rule, for a
    function of the user's own. Whole numbers that were given as such still are. Arrays have the mask's batch axes, and
    then as many of a text as `text_axes` says: `[*batch]`, `[*batch, q]` or `[*batch, k]`.
    """

    kind: str
    values: tuple
    text_axes: tuple[int, ...]


def parts(mask: Mask | None) -> tuple[Part, ...]:
    """What a mask is the conjunction of; () where all may attend."""
    if isinstance(mask, MaskRule):
        return tuple(_parts(mask.rule, mask.arrays))
    return () if mask is None else (Part("array", (mask,), (2,)),)


def materialize(mask: Mask) -> Bool[Array, "*batch q k"]:
    """The mask as an array `[..., Q or 1, K]`. Raises TypeError for an array that is not boolean."""
    if isinstance(mask, MaskRule):
        return mask.block(jnp.arange(mask.num_queries or 1), jnp.arange(mask.num_keys))
    if mask.dtype != jnp.bool_:
        raise TypeError(f"mask has dtype {mask.dtype}, needs bool: True = may attend.")
    return mask


def masked_softmax(scores: Float[Array, "*batch q k"], mask: Mask | None = None) -> Float[Array, "*batch q k"]:
    """Softmax over the keys that `mask` allows; a query that may attend to no key gets zeros.

    α_i = m_i exp(a_i) / Σ_j m_j exp(a_j), accumulated in float32. Gradients are finite for every mask.
    """
    scores_f32, allowed = with_mask(scores, mask)
    peak = jax.lax.stop_gradient(jnp.max(scores_f32, axis=-1, keepdims=True, where=allowed, initial=-jnp.inf))
    peak = jnp.where(jnp.isfinite(peak), peak, 0)
    weights = jnp.where(allowed, jnp.exp(jnp.where(allowed, scores_f32 - peak, 0)), 0)
    return _divide(weights, jnp.sum(weights, axis=-1, keepdims=True)).astype(scores.dtype)


def masked_normalize(
    weights: Float[Array, "*batch q k"], mask: Mask | None = None, empty: str = "zeros"
) -> Float[Array, "*batch q k"]:
    """w_i / Σ_j w_j over the keys that `mask` allows, of weights ≥ 0.

    If all weights of a query are zero, `empty` decides: "zeros", or "mean", equal weights on the keys that are allowed.
    """
    if empty not in ("zeros", "mean"):
        raise ValueError(f"empty={empty!r}: choose 'zeros' or 'mean'.")
    weights_f32, allowed = with_mask(weights, mask)
    weights_f32 = jnp.where(allowed, weights_f32, 0)
    total = jnp.sum(weights_f32, axis=-1, keepdims=True)
    if empty == "mean":
        weights_f32 = jnp.where(total == 0, allowed.astype(weights_f32.dtype), weights_f32)
        total = jnp.sum(weights_f32, axis=-1, keepdims=True)
    return _divide(weights_f32, total).astype(weights.dtype)


def with_mask(scores: Array, mask: Mask | None) -> tuple[Array, Array]:
    """Scores in float32 or more, and which of them the mask allows, with equal ranks.

    Raises ValueError for shapes that do not fit.
    """
    scores_f32 = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    if mask is None:
        return scores_f32, jnp.ones((1,) * scores.ndim, bool)
    allowed = materialize(mask)
    require_broadcast("mask", allowed.shape, "scores", scores.shape)
    require_batch_count("mask", allowed.shape, "scores", scores.shape)
    scores_f32, allowed = align_ranks(scores_f32, allowed)
    return scores_f32, allowed


def _divide(weights: Array, total: Array) -> Array:
    return weights / jnp.where(total == 0, 1, total)


def _trailing(array: Array) -> Array:
    return array[..., None, None]


def _within_length(query_index, key_index, lengths):
    del query_index
    return _compare(jnp.less, key_index, _trailing(lengths))


def _within_query_length(query_index, key_index, lengths):
    return _compare(jnp.less, key_index, lengths[..., query_index])


def _causal(query_index, key_index, offset):
    return _compare(jnp.less_equal, key_index - query_index, _trailing(offset))


def _near(query_index, key_index, window, offset):
    distance, window = _aligned(_compare(jnp.subtract, key_index - query_index, _trailing(offset)), _trailing(window))
    return jnp.abs(distance) <= window


def _prefix(query_index, key_index, prefix, offset):
    within = jnp.broadcast_to(key_index, jnp.broadcast_shapes(query_index.shape, key_index.shape))
    return _compare(
        jnp.logical_or, _within_length(query_index, within, prefix), _causal(query_index, key_index, offset)
    )


def _same_segment(query_index, key_index, query_segments, key_segments):
    return query_segments[..., query_index] == key_segments[..., key_index]


def _all(query_index, key_index):
    return jnp.ones(jnp.broadcast_shapes(query_index.shape, key_index.shape), bool)


def _looked_up(query_index, key_index, array):
    rows, columns = array.shape[-2:]
    return array[..., jnp.minimum(query_index, rows - 1), jnp.minimum(key_index, columns - 1)]


def _valid(query_index, key_index, valid):
    del query_index
    return valid[..., key_index]


def _near_centre(query_index, key_index, centre, window):
    distance = jnp.subtract(*align_ranks(key_index.astype(centre.dtype), centre[..., query_index]))
    return jnp.abs(distance) <= window


def _compare(operation: Callable, a: Array, b: Array) -> Array:
    return operation(*_aligned(a, b))


def _aligned(*parts: Array) -> tuple[Array, ...]:
    """`align_ranks` of parts that have no batch axes, or as many as the others."""
    largest = max(parts, key=jnp.ndim)
    for part in parts:
        require_batch_count("mask", jnp.shape(part), "others", jnp.shape(largest))
    return align_ranks(*parts)


def _conjunction(parts: list[Array]) -> Array:
    try:
        np.broadcast_shapes(*(part.shape for part in parts))
    except ValueError:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise ValueError(f"masks of shapes {shapes} do not combine: their axes do not broadcast.") from None
    return functools.reduce(jnp.logical_and, _aligned(*parts))


def _with_numbers(rule: Callable, values: tuple, num_queries: int, num_keys: int) -> MaskRule:
    """The rule with these values, of which plain numbers stay numbers, so that a backend may know them."""
    numbers = tuple(value if isinstance(value, int) else None for value in values)
    arrays = tuple(jnp.asarray(value) for value in values if not isinstance(value, int))
    return MaskRule(_With(rule, numbers), arrays, num_queries, num_keys)


# Of each rule: what its constructor says, and how many axes of a text each of its values has.
_KINDS: dict[Callable, tuple[str, tuple[int, ...]]] = {
    _causal: ("causal", (0,)),
    _near: ("window", (0, 0)),
    _within_length: ("lengths", (0,)),
    _within_query_length: ("lengths by query", (1,)),
    _valid: ("keys", (1,)),
    _prefix: ("prefix", (0, 0)),
    _same_segment: ("segments", (1, 1)),
    _near_centre: ("near", (1, 0)),
    _looked_up: ("array", (2,)),
}


def _parts(rule: Callable, values: tuple) -> Iterator[Part]:
    if isinstance(rule, (_All, _With, _WithAxes)):
        yield from rule.parts(values)
    elif rule in _KINDS:
        kind, text_axes = _KINDS[rule]
        yield Part(kind, values, text_axes)
    elif rule is not _all:
        yield Part("rule", values, ())


@dataclass(frozen=True)
class _With:
    """A rule some of whose values are numbers, None for those that are arrays; equal rules compare equal under jit."""

    rule: Callable
    numbers: tuple[int | None, ...]

    def __call__(self, query_index, key_index, *arrays):
        return self.rule(query_index, key_index, *map(jnp.asarray, self._values(arrays)))

    def parts(self, arrays: tuple) -> Iterator[Part]:
        return _parts(self.rule, self._values(arrays))

    def _values(self, arrays: tuple) -> tuple:
        remaining = iter(arrays)
        return tuple(next(remaining) if number is None else number for number in self.numbers)


@dataclass(frozen=True)
class _All:
    """The conjunction of rules, each with its own number of arrays; equal rules compare equal under jit."""

    rules: tuple[Callable, ...]
    counts: tuple[int, ...]

    def __call__(self, query_index, key_index, *arrays):
        return _conjunction([rule(query_index, key_index, *own) for rule, own in self._each(arrays)])

    def parts(self, arrays: tuple) -> Iterator[Part]:
        return (part for rule, own in self._each(arrays) for part in _parts(rule, own))

    def _each(self, arrays: tuple) -> Iterator[tuple[Callable, tuple]]:
        """The rules, each with its own arrays."""
        remaining = iter(arrays)
        for rule, count in zip(self.rules, self.counts, strict=True):
            yield rule, tuple(itertools.islice(remaining, count))


@dataclass(frozen=True)
class _WithAxes:
    """A rule whose masks get axes of size 1; equal rules compare equal under jit."""

    rule: Callable
    axes: tuple[int, ...]

    def __call__(self, query_index, key_index, *arrays):
        return jnp.expand_dims(self.rule(query_index, key_index, *arrays), self.axes)

    def parts(self, arrays: tuple) -> Iterator[Part]:
        for part in _parts(self.rule, arrays):
            sized = zip(part.values, part.text_axes, strict=True)
            yield part._replace(values=tuple(self._expanded(value, count) for value, count in sized))

    def _expanded(self, value: Any, text_axes: int) -> Any:
        """A value with the axes; they are counted from the end of a mask, which has two axes of texts."""
        return value if isinstance(value, int) else jnp.expand_dims(value, [axis + 2 - text_axes for axis in self.axes])


def _combine_rules(masks: tuple[MaskRule, ...]) -> MaskRule:
    sizes = {mask.num_keys for mask in masks}
    lengths = {mask.num_queries for mask in masks} - {None}
    if len(sizes) > 1 or len(lengths) > 1:
        shapes = ", ".join(f"[{mask.num_queries or 1}, {mask.num_keys}]" for mask in masks)
        raise ValueError(f"masks over different queries and keys do not combine: {shapes}.")
    rule = _All(tuple(mask.rule for mask in masks), tuple(len(mask.arrays) for mask in masks))
    return MaskRule(rule, sum((mask.arrays for mask in masks), ()), lengths.pop() if lengths else None, sizes.pop())
