"""What the kernels that others ship have in common: what of attention they can do, and how they are called.

Such a kernel computes softmax(scale · qᵀk) v, and knows a few masks by what they say. It is handed examples
`[B, K, G, Q, D]`: G heads of queries share each of K heads of keys. It has no weights, biases or dropout as they are
asked for here, and a query that may attend to nothing is not its concern: such rows become zeros afterwards, with zeros
as their gradient.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attention_jax.backends.record import Call, first_of, platform
from attention_jax.ops.attention import Attended, Attention
from attention_jax.ops.masking import Mask, Part, fitting_rule, masked_softmax, parts
from attention_jax.ops.scoring import dot, scaled_dot
from attention_jax.ops.shapes import align_ranks, require_batch, require_same_size

SCALES: dict[Callable, Callable[[int], float]] = {dot: lambda size: 1.0, scaled_dot: lambda size: 1 / math.sqrt(size)}
LANES = 128  # kernels read queries and keys in blocks of a multiple of these
# What stands for the segment of padding, in queries and in keys: no two are alike, and no text has them.
NO_QUERY, NO_KEY = np.iinfo(np.int32).min, np.iinfo(np.int32).min + 1
PLATFORMS = {"gpu": "a GPU", "tpu": "a TPU"}


class Examples(NamedTuple):
    """A call's arrays with three batch axes: examples, heads of keys, and the heads of queries that share those."""

    query: Float[Array, "b k g q d"]
    key: Float[Array, "b k s d"]
    value: Float[Array, "b k s v"]


class Known(NamedTuple):
    """A mask in the words of kernels, of which all must allow a key. Batch axes are `[B]`, or `[1]` for all."""

    is_causal: bool = False
    window: int | None = None
    lengths: Int[Array, " b"] | None = None
    keys: Bool[Array, "b s"] | None = None
    segments: tuple[Int[Array, "b q"], Int[Array, "b s"]] | None = None


class Kernel(NamedTuple):
    """What a kernel can do. It runs on `platform`, "" for any; `reasons` are more that it has against a call.

    `mark` is `Backend.mark`.
    """

    run: Callable[[Examples, Known, float], Float[Array, "b k g q v"]]
    platform: str
    dtypes: tuple[str, ...]
    masks: tuple[str, ...]
    mark: tuple[str, ...]
    reasons: Callable[[tuple[str, ...], Call], dict[str, bool]] = lambda masks, call: {}


def refusal(kernel: Kernel, attention: Attention, call: Call | None) -> str:
    """Why the kernel cannot do what is asked; "" if it can."""
    relative, masks = attention.relative, named(attention.mask)
    others = [name for name in masks if name not in kernel.masks]
    asked = {
        "it never makes all weights": attention.with_weights or attention.replacement is not None,
        "it never makes the maps of all heads, which this family of attention reads": attention.maps.do_something,
        "it scores by dot or scaled_dot alone": attention.score.apply not in SCALES,
        "it normalizes by softmax alone": attention.normalizer.apply is not masked_softmax,
        "it adds no bias to scores": attention.has_bias,
        "it has no falloff, and adds nothing beside the values": bool(relative.falloff or relative.mix),
        "it has no dropout of weights (leave 'attention' out of dropout_sites)": (
            attention.dropout is not None or (call is not None and call.has_dropout)
        ),
        f"of masks it has {', '.join(kernel.masks)}, not {', '.join(others)}": bool(others),
    }
    if call is None:
        return first_of(asked)
    known = {
        f"it computes in {' or '.join(kernel.dtypes)}, and this is {call.dtype}": (
            call.dtype is not None and call.dtype not in kernel.dtypes
        ),
        "it has queries, keys and values of one size": None not in (call.features, call.value_features)
        and call.features != call.value_features,
    }
    return first_of(asked | known | kernel.reasons(masks, call)) or _elsewhere(kernel)


def _elsewhere(kernel: Kernel) -> str:
    """Why the kernel cannot run here."""
    if not kernel.platform or (here := platform()) == kernel.platform:
        return ""
    return f"it computes on {PLATFORMS[kernel.platform]}, and programs here are for {here}"


def pooled(
    kernel: Kernel,
    query: Float[Array, "*#batch q d"],
    key: Float[Array, "*#batch k d"],
    value: Float[Array, "*#batch k v"],
    attention: Attention,
) -> Attended:
    """The attention that the record asks for, by the kernel."""
    require_batch(key=key, value=value)
    require_same_size(-2, key=key, value=value)
    batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    if not query.shape[-2] or not key.shape[-2]:
        return Attended(jnp.zeros((*batch, query.shape[-2], value.shape[-1]), value.dtype), None)
    scores = (*np.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.shape[-2], key.shape[-2])
    rule, known = fitting_rule(attention.mask, scores), known_of(attention.mask, batch)
    if known.lengths is not None:
        known = known._replace(lengths=jnp.minimum(known.lengths, key.shape[-2]))
    found = kernel.run(_examples(query, key, value, batch), known, SCALES[attention.score.apply](query.shape[-1]))
    found = found.reshape(*batch, *found.shape[-2:]).astype(value.dtype)
    if known.lengths is known.keys is known.segments is None:  # every query may attend to a key
        return Attended(found, None)
    reads = jnp.any(rule.block(jnp.arange(query.shape[-2]), jnp.arange(key.shape[-2])), axis=-1, keepdims=True)
    found, reads = align_ranks(found, reads)
    return Attended(jnp.where(reads, found, 0), None)


def _examples(query: Array, key: Array, value: Array, batch: tuple[int, ...]) -> Examples:
    """The arrays with three batch axes; keys of heads that share none are those of more heads of keys."""
    examples, heads, groups = (math.prod(batch[:-2]), *batch[-2:]) if len(batch) > 2 else (*batch, 1, 1, 1)[:3]
    if len(batch) > 2 and any(array.ndim > 2 and array.shape[-3] != 1 for array in (key, value)):
        heads, groups = heads * groups, 1
    of_keys = batch if groups == 1 else (*batch[:-1], 1)
    first, second = (
        jnp.broadcast_to(array, (*of_keys, *array.shape[-2:])).reshape(examples, heads, *array.shape[-2:])
        for array in (key, value)
    )
    queries = jnp.broadcast_to(query, (*batch, *query.shape[-2:]))
    return Examples(queries.reshape(examples, heads, groups, *query.shape[-2:]), first, second)


def named(mask: Mask | None) -> tuple[str, ...]:
    """What a mask is the conjunction of, each by a name that says whether a kernel may know it."""
    names = tuple(_name(part) for part in parts(mask))
    return (*names, "segments twice") if names.count("segments") > 1 else names


def _name(part: Part) -> str:
    numbers = {"causal": "an offset", "window": "an offset or a width that is traced"}
    if part.kind in numbers and not (all(isinstance(v, int) for v in part.values) and part.values[-1] == 0):
        return f"{part.kind} with {numbers[part.kind]}"
    return part.kind


def known_of(mask: Mask | None, batch: tuple[int, ...]) -> Known:
    """A mask in the words of kernels. Raises ValueError for one that differs by head."""
    known = Known()
    for part in parts(mask):
        sized = zip(part.values, part.text_axes, strict=True)
        known = _KNOWN[part.kind](known, *(_of_examples(value, count, batch) for value, count in sized))
    return known


_KNOWN: dict[str, Callable[..., Known]] = {
    "causal": lambda known, offset: known._replace(is_causal=True),
    "window": lambda known, window, offset: known._replace(window=_least(known.window, window, min)),
    "lengths": lambda known, lengths: known._replace(lengths=_least(known.lengths, lengths, jnp.minimum)),
    "keys": lambda known, valid: known._replace(keys=_least(known.keys, valid, jnp.logical_and)),
    "segments": lambda known, *both: known._replace(segments=both),
}


def _least(one: Any, other: Any, least: Callable) -> Any:
    return other if one is None else least(one, other)


def _of_examples(value: Any, text_axes: int, batch: tuple[int, ...]) -> Any:
    """A mask's value for each example, or one for all: `[B or 1]`, and then its axes of a text."""
    if isinstance(value, int):
        return value
    own, of_text = value.shape[: value.ndim - text_axes], value.shape[value.ndim - text_axes :]
    if math.prod(own) == 1:
        return value.reshape(1, *of_text)
    count = max(len(batch) - 2, 1)  # of axes that are examples; the others are heads
    if math.prod(own[count:]) != 1:
        raise ValueError(f"mask: differs by head, with axes {own}, and no kernel's does. Choose backend='reference'.")
    every = jnp.broadcast_to(value.reshape(*own[:count], *of_text), (*batch[:count], *of_text))
    return every.reshape(math.prod(batch[:count]), *of_text)


def ids_of(known: Known, queries: int, keys: int, padded: tuple[int, int]) -> tuple[Array, Array]:
    """Segments `[B, Q']` and `[B, S']` of queries and keys with their padding: only keys of a query's own are read."""
    of_queries, of_keys = known.segments or (jnp.zeros((1, queries), jnp.int32), jnp.zeros((1, keys), jnp.int32))
    allowed = [] if known.keys is None else [known.keys]
    if known.lengths is not None:
        allowed.append(jnp.arange(keys)[None] < known.lengths[:, None])
    if allowed:
        of_keys = jnp.where(functools.reduce(jnp.logical_and, allowed), of_keys, NO_KEY)
    filled = ((of_queries, padded[0] - queries, NO_QUERY), (of_keys, padded[1] - keys, NO_KEY))
    first, second = (
        jnp.pad(ids.astype(jnp.int32), ((0, 0), (0, more)), constant_values=none) for ids, more, none in filled
    )
    return first, second


def in_lanes(length: int) -> int:
    """The least multiple of `LANES` with room for a text."""
    return -(-length // LANES) * LANES


def block_of(length: int, most: int) -> int:
    """The largest block of at most `most` that divides a length; both are multiples of `LANES`."""
    return next(size for size in range(min(most, length), 0, -LANES) if length % size == 0)


def lanes(name: str, value: Any) -> int:
    """`value`, the option `name`. Raises ValueError unless it is a multiple of `LANES`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < LANES or value % LANES:
        raise ValueError(f"{name}={value!r}: needs a multiple of {LANES}.")
    return value


def lengthened(array: Array, length: int) -> Array:
    """`[..., n, d]` with zeros up to the length."""
    return jnp.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, length - array.shape[-2]), (0, 0)])
