"""Masks: who may attend to whom, and the softmax that respects it.

A mask is boolean, True = may attend, and broadcasts to the scores `[..., Q, K]`. It has no batch axes, or as many as
the scores, some perhaps of size 1: an axis of examples is never taken for one of heads. A mask is an array or a
`MaskRule`, a function of query and key indices, of which any block can be made without the whole. The constructors
below give rules; `materialize` makes the array.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attention_jax.ops.intervals import Interval, interval
from attention_jax.ops.shapes import align_ranks, require_batch_count, require_broadcast


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Rule:
    """`allows(query_index, key_index, *numbers)` → may attend, of one query, one key, and what it reads of them.

    What is read of a "text" is an array `[...]`, of a "query" `[..., Q]`, of a "key" `[..., K]`, of a "pair" `[..., Q,
    K]`; or a plain number, which stays one under jit. `allows` is made of +, −, abs, comparisons, &, | and ~ alone: it
    is called with arrays, with blocks inside a kernel, and with intervals (`ops/intervals.py`), which say what holds of
    a whole block.
    """

    allows: Callable
    values: tuple = ()
    reads: tuple[str, ...] = ()

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The values, as arrays."""
        return tuple(map(jnp.asarray, self.values))

    def tree_flatten(self) -> tuple[tuple, tuple]:
        numbers = tuple(value if isinstance(value, int) else None for value in self.values)
        arrays = tuple(value for value in self.values if not isinstance(value, int))
        return arrays, (self.allows, numbers, self.reads)

    @classmethod
    def tree_unflatten(cls, static: tuple, arrays: Iterable) -> "Rule":
        (allows, numbers, reads), remaining = static, iter(arrays)
        return cls(allows, tuple(next(remaining) if number is None else number for number in numbers), reads)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["rules"], meta_fields=["num_queries", "num_keys"])
@dataclass(frozen=True)
class MaskRule:
    """What all `rules` allow, any block of which can be made without the whole.

    `num_queries` is None for a mask that is the same for every query.
    """

    rules: tuple[Rule, ...]
    num_queries: int | None
    num_keys: int

    def block(self, query_index: Int[Array, " q"], key_index: Int[Array, " k"]) -> Bool[Array, "*batch q k"]:
        """The mask for these queries and keys alone."""
        read = functools.partial(_gathered, query_index, key_index)
        parts = [_aligned(query_index[:, None], key_index[None, :], *map(read, r.arrays, r.reads)) for r in self.rules]
        found = [rule.allows(*part) for rule, part in zip(self.rules, parts, strict=True)]
        return _conjunction(found) if found else jnp.ones((len(query_index), len(key_index)), bool)

    def may_allow(self, query_index: Int[Array, " q"], key_index: Int[Array, " k"]) -> Bool[Array, ""]:
        """Whether any of these neighbouring queries may attend to any of these keys; never False where one may.

        It is told by the least and the highest of what the rules read, each rule alone.
        """
        indices = [Interval(index[0], index[-1]) for index in (query_index, key_index)]
        read, found = functools.partial(_gathered, query_index, key_index), jnp.array(True)
        for rule in self.rules:
            arrays = align_ranks(*map(read, rule.arrays, rule.reads)) if rule.arrays else ()
            found &= jnp.any(interval(rule.allows(*indices, *map(_over_block, arrays))).high)
        return found


Mask = MaskRule | Bool[Array, "*batch q k"]
AXES = {"text": 0, "query": 1, "key": 1, "pair": 2}  # of a text, that what is read of each has


def valid_lens_mask(lengths: Int[Array, "*batch"], num_keys: int, *, per_query: bool = False) -> MaskRule:
    """Attend to the first `lengths` keys: `[...] → [..., 1, K]`, or with `per_query` `[..., Q] → [..., Q, K]`."""
    lengths = jnp.asarray(lengths)
    if per_query:
        return _mask(_within_length, lengths.shape[-1], num_keys, query=(lengths,))
    return _mask(_within_length, None, num_keys, text=(lengths,))


def causal_mask(num_queries: int, num_keys: int, offset: int | Int[Array, "*batch"] = 0) -> MaskRule:
    """Attend to keys at or before the query: k ≤ q + offset, with `offset` keys in a cache before the first query."""
    return _mask(_causal, num_queries, num_keys, text=(offset,))


def window_mask(
    num_queries: int, num_keys: int, window: int | Int[Array, "*batch"], offset: int | Int[Array, "*batch"] = 0
) -> MaskRule:
    """Attend to keys at most `window` positions away, on either side: |q + offset − k| ≤ window."""
    return _mask(_near, num_queries, num_keys, text=(window, offset))


def prefix_mask(
    num_queries: int, num_keys: int, prefix: int | Int[Array, "*batch"], offset: int | Int[Array, "*batch"] = 0
) -> MaskRule:
    """Attend to the first `prefix` keys, and beyond them to keys at or before the query (prefix language model)."""
    return _mask(_prefix, num_queries, num_keys, text=(prefix, offset))


def segment_mask(query_segments: Int[Array, "*batch q"], key_segments: Int[Array, "*batch k"]) -> MaskRule:
    """Attend to keys of the query's own segment in a packed row."""
    arrays = (jnp.asarray(query_segments), jnp.asarray(key_segments))
    if arrays[0].shape[:-1] != arrays[1].shape[:-1]:
        raise ValueError(f"query_segments {arrays[0].shape} and key_segments {arrays[1].shape} differ in batch axes.")
    return _mask(_same_segment, arrays[0].shape[-1], arrays[1].shape[-1], query=arrays[:1], key=arrays[1:])


def keys_mask(valid: Bool[Array, "*batch k"]) -> MaskRule:
    """Attend to the keys that are `valid` (not padding): `[..., K] → [..., 1, K]`.

    Raises TypeError for an array that is not boolean.
    """
    _require_bool("valid", valid)
    return _mask(_is_true, None, valid.shape[-1], key=(valid,))


def near_mask(centre: Float[Array, "*batch q"], window: float, num_keys: int) -> MaskRule:
    """Attend to keys at most `window` positions from each query's centre, which need not be a whole number."""
    if window < 1:
        raise ValueError(f"window={window}: needs 1 or more.")
    return _mask(_near_centre, centre.shape[-1], num_keys, text=(window,), query=(centre,))


def with_axes(mask: Mask, count: int) -> Mask:
    """The mask with `count` axes of size 1, for heads, before its queries: `[..., Q, K] → [..., 1, Q, K]`.

    A rule stays a rule.
    """
    if not isinstance(mask, MaskRule):
        return jnp.expand_dims(mask, tuple(range(-2 - count, -2)))

    def widened(value, of):
        return value if isinstance(value, int) else jnp.expand_dims(value, range(-AXES[of] - count, -AXES[of]))

    rules = (replace(rule, values=tuple(map(widened, rule.values, rule.reads))) for rule in mask.rules)
    return replace(mask, rules=tuple(rules))


def combine(*masks: Mask | None) -> Mask | None:
    """The mask of what all of them allow, None if none is given: a rule if all are rules, else an array."""
    present = tuple(mask for mask in masks if mask is not None)
    if len(present) < 2:
        return present[0] if present else None
    rules = tuple(mask for mask in present if isinstance(mask, MaskRule))
    if len(rules) == len(present):
        return _combine_rules(rules)
    return _conjunction([materialize(mask) for mask in present])


def as_rule(mask: Mask | None, num_keys: int) -> MaskRule:
    """The mask as a rule: of an array, a rule that looks it up; of None, a rule that allows all `num_keys`."""
    if isinstance(mask, MaskRule):
        return mask
    if mask is None:
        return MaskRule((), None, num_keys)
    array, has_rows, has_columns = materialize(mask), mask.shape[-2] > 1, mask.shape[-1] > 1
    of = {(0, 0): "text", (1, 0): "query", (0, 1): "key", (1, 1): "pair"}[has_rows, has_columns]
    rows, columns = mask.shape[-2] if has_rows else None, mask.shape[-1] if has_columns else num_keys
    array = array[..., slice(None) if has_rows else 0, slice(None) if has_columns else 0]
    return _mask(_is_true, rows, columns, **{of: (array,)})


def fitting_rule(mask: Mask | None, scores: tuple[int, ...]) -> MaskRule:
    """The mask as a rule for scores of this shape. Raises ValueError if it does not fit them."""
    rule = as_rule(mask, scores[-1])
    block = jax.eval_shape(lambda: rule.block(jnp.arange(1), jnp.arange(1))).shape
    shape = (*block[:-2], rule.num_queries or 1, rule.num_keys)
    require_broadcast("mask", shape, "scores", scores)
    require_batch_count("mask", shape, "scores", scores)
    return rule


class Part(NamedTuple):
    """One of the masks that a mask is the conjunction of: what its constructor says, and with what values.

    `kind` is causal, window, lengths (of keys), lengths by query, keys, prefix, segments, near, array, or rule, for a
    function of the user's own. Plain numbers that were given as such still are. Arrays have the mask's batch axes, and
    then as many of a text as `text_axes` says: `[*batch]`, `[*batch, q]` or `[*batch, k]`.
    """

    kind: str
    values: tuple
    text_axes: tuple[int, ...]


def parts(mask: Mask | None) -> tuple[Part, ...]:
    """What a mask is the conjunction of; () where all may attend."""
    if isinstance(mask, MaskRule):
        return tuple(Part(_kind(rule), rule.values, tuple(AXES[of] for of in rule.reads)) for rule in mask.rules)
    return () if mask is None else (Part("array", (mask,), (2,)),)


def materialize(mask: Mask) -> Bool[Array, "*batch q k"]:
    """The mask as an array `[..., Q or 1, K]`. Raises TypeError for an array that is not boolean."""
    if isinstance(mask, MaskRule):
        return mask.block(jnp.arange(mask.num_queries or 1), jnp.arange(mask.num_keys))
    _require_bool("mask", mask)
    return mask


def masked_softmax(scores: Float[Array, "*batch q k"], mask: Mask | None = None) -> Float[Array, "*batch q k"]:
    """Softmax over the keys that `mask` allows; a query that may attend to no key gets zeros.

    α_i = m_i exp(a_i) / Σ_j m_j exp(a_j), accumulated in float32. Gradients are finite for every mask.
    """
    weights = exponentials(*with_mask(scores, mask))
    return _divide(weights, jnp.sum(weights, axis=-1, keepdims=True)).astype(scores.dtype)


def exponentials(
    scores: Float[Array, "*batch q k"], allowed: Bool[Array, "*#batch #q #k"]
) -> Float[Array, "*batch q k"]:
    """m_i exp(a_i − max_j m_j a_j): the largest is 1, so that none overflows and not all underflow."""
    peak = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True, where=allowed, initial=-jnp.inf))
    peak = jnp.where(jnp.isfinite(peak), peak, 0)
    return jnp.where(allowed, jnp.exp(jnp.where(allowed, scores - peak, 0)), 0)


def masked_normalize(
    weights: Float[Array, "*batch q k"], mask: Mask | None = None, empty: str = "zeros"
) -> Float[Array, "*batch q k"]:
    """w_i / Σ_j w_j over the keys that `mask` allows, of weights ≥ 0.

    If all weights of a query are zero, `empty` decides: "zeros", or "mean", equal weights on the keys that are allowed.
    A query's weights are divided by the highest of them first, for the gradient of 1 / Σ_j w_j may overflow.
    """
    if empty not in ("zeros", "mean"):
        raise ValueError(f"empty={empty!r}: choose 'zeros' or 'mean'.")
    weights_f32, allowed = with_mask(weights, mask)
    weights_f32 = jnp.where(allowed, weights_f32, 0)
    highest = jax.lax.stop_gradient(jnp.max(weights_f32, axis=-1, keepdims=True, initial=0))
    weights_f32 = _divide(weights_f32, highest)
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


def _mask(allows: Callable, num_queries: int | None, num_keys: int, **arrays: tuple) -> MaskRule:
    """The mask of one rule, `arrays` by what they are read of."""
    reads = tuple(of for of, own in arrays.items() for _ in own)
    values = (value if isinstance(value, int) else jnp.asarray(value) for own in arrays.values() for value in own)
    return MaskRule((Rule(allows, tuple(values), reads),), num_queries, num_keys)


def _require_bool(name: str, array: Array) -> None:
    if array.dtype != jnp.bool_:
        raise TypeError(f"{name} has dtype {array.dtype}, needs bool: True = may attend.")


def _within_length(query, key, length):
    return key < length


def _causal(query, key, offset):
    return key - query <= offset


def _near(query, key, window, offset):
    return abs(key - query - offset) <= window


def _prefix(query, key, prefix, offset):
    return (key < prefix) | (key - query <= offset)


def _same_segment(query, key, query_segment, key_segment):
    return query_segment == key_segment


def _is_true(query, key, truth):
    return truth


def _near_centre(query, key, window, centre):
    return abs(key - centre) <= window


# What the constructor of a rule says, by the rule and what it reads.
_KINDS: dict[tuple[Callable, tuple[str, ...]], str] = {
    (_causal, ("text",)): "causal",
    (_near, ("text", "text")): "window",
    (_within_length, ("text",)): "lengths",
    (_within_length, ("query",)): "lengths by query",
    (_is_true, ("key",)): "keys",
    (_is_true, ("pair",)): "array",
    (_is_true, ("query",)): "array",
    (_is_true, ("text",)): "array",
    (_prefix, ("text", "text")): "prefix",
    (_same_segment, ("query", "key")): "segments",
    (_near_centre, ("text", "query")): "near",
}


def _kind(rule: Rule) -> str:
    return _KINDS.get((rule.allows, rule.reads), "rule")


def _gathered(query_index: Array, key_index: Array, array: Array, of: str) -> Array:
    """What a rule reads of these queries and keys, as `[..., q or 1, k or 1]`."""
    if of == "query":
        return array[..., query_index, None]
    if of == "key":
        return array[..., None, key_index]
    return array[..., query_index[:, None], key_index[None, :]] if of == "pair" else array[..., None, None]


def _over_block(array: Array) -> Interval:
    """From the least to the highest of what is read of a block's queries and keys."""
    return Interval(jnp.min(array, axis=(-2, -1)), jnp.max(array, axis=(-2, -1)))


def _aligned(*parts: Array) -> tuple[Array, ...]:
    """`align_ranks` of parts that have no batch axes, or as many as the others."""
    rank = max(map(jnp.ndim, parts))
    others = np.broadcast_shapes(*(part.shape if part.ndim == rank else part.shape[-2:] for part in parts))
    for part in parts:
        require_batch_count("mask", part.shape, "others", others)
    return align_ranks(*parts)


def _conjunction(parts: list[Array]) -> Array:
    try:
        np.broadcast_shapes(*(part.shape for part in parts))
    except ValueError:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise ValueError(f"masks of shapes {shapes} do not combine: their axes do not broadcast.") from None
    return functools.reduce(jnp.logical_and, _aligned(*parts))


def _combine_rules(masks: tuple[MaskRule, ...]) -> MaskRule:
    sizes = {mask.num_keys for mask in masks}
    lengths = {mask.num_queries for mask in masks} - {None}
    if len(sizes) > 1 or len(lengths) > 1:
        shapes = ", ".join(f"[{mask.num_queries or 1}, {mask.num_keys}]" for mask in masks)
        raise ValueError(f"masks over different queries and keys do not combine: {shapes}.")
    rules = tuple(rule for mask in masks for rule in mask.rules)
    return MaskRule(rules, lengths.pop() if lengths else None, sizes.pop())
