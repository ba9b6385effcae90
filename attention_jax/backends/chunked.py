"""Attention block by block: time as ever, memory that grows with queries + keys and never with their product.

Each block of queries goes through the keys, block after block, and keeps a running peak, sum and pool of what it has
read (Milakov & Gimelshein 2018, alg. 3; Rabe & Staats 2021, §3). Gradients compute every block again. Masks, biases and
dropout are made for one block at a time, from rules, positions and hashed logical indices.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attention_jax.ops.attention import Attended, Attention
from attention_jax.ops.dropout import drop
from attention_jax.ops.masking import MaskRule, as_rule
from attention_jax.ops.normalizing import Stream
from attention_jax.ops.shapes import (
    align_ranks,
    require_batch,
    require_batch_count,
    require_broadcast,
    require_same_size,
)


def refusal(attention: Attention) -> str:
    """Why blocks cannot do what is asked; "" where they can."""
    reasons = {
        "weights are never all made": attention.with_weights or attention.replacement is not None,
        "a score by the places of keys needs them whole": attention.score.room is not None,
        "its normalizer needs whole rows": attention.normalizer.stream is None,
        "a bias that is an array is as large as what blocks avoid (give a function of positions)": (
            attention.bias is not None
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class Job(NamedTuple):
    """What every block needs to know: what is asked, how its rows stream, which keys they see, how many there are."""

    attention: Attention
    stream: Stream
    rule: MaskRule
    num_keys: int


class Queries(NamedTuple):
    """A block of queries: features, indices in the whole, places."""

    query: Float[Array, "*batch q d"]
    indices: Int[Array, " q"]
    places: Any


class Keys(NamedTuple):
    """A block of keys and their values."""

    key: Float[Array, "*batch k d"]
    value: Float[Array, "*batch k v"]
    indices: Int[Array, " k"]
    places: Any


class Running(NamedTuple):
    """What a block of queries knows of the keys so far: the highest score, Σ share, and Σ share · value."""

    peak: Float[Array, "*batch q 1"]
    total: Float[Array, "*batch q 1"]
    values: Float[Array, "*batch q v"]


def pooled(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    attention: Attention,
    blocks: tuple[int, int],
) -> Attended:
    """What `attention` says, in blocks of so many queries and keys."""
    require_batch(key=key, value=value)
    require_same_size(-2, key=key, value=value)
    relative, stream = attention.relative, attention.normalizer.stream
    if stream is None:
        raise ValueError(f"backend='chunked': {refusal(attention)}.")
    job = Job(attention, stream, _rule(attention, query, key), key.shape[-2])
    by_query = Queries(*_blocks(blocks[0], query, relative.queries))
    by_key = Keys(*_key_blocks(blocks[1], key, value, relative.keys))
    read = jax.checkpoint(functools.partial(_read, job, value.dtype), prevent_cse=False)
    _, found = jax.lax.scan(lambda _, block: (None, read(block, by_key)), None, by_query)
    joined = jnp.moveaxis(found, 0, -3)  # [..., blocks, q, V]
    joined = joined.reshape(*joined.shape[:-3], -1, joined.shape[-1])
    return Attended(joined[..., : query.shape[-2], :], None)


def _read(job: Job, dtype, block: Queries, by_key: Keys) -> Float[Array, "*batch q v"]:
    """What one block of queries pools from all keys."""
    counts = _count(job, block, by_key.indices) if job.stream.counts else None
    step = jax.checkpoint(functools.partial(_step, job, block, counts), prevent_cse=False)
    start = _start(job, block, by_key)
    last, _ = jax.lax.scan(lambda running, keys: (step(running, keys), None), start, by_key)
    if not job.stream.divides:
        return last.values.astype(dtype)
    return (last.values / jnp.where(last.total == 0, 1, last.total)).astype(dtype)


def _step(job: Job, block: Queries, counts: Array | None, running: Running, keys: Keys) -> Running:
    """The running sums after one more block of keys."""
    stream, relative = job.stream, job.attention.relative
    scores, allowed = _scores(job, block, keys)
    peak, decay = running.peak, jnp.ones_like(running.peak)
    if stream.has_peak:
        highest = jnp.max(scores, axis=-1, keepdims=True, where=allowed, initial=-jnp.inf)
        peak = jnp.maximum(peak, jax.lax.stop_gradient(highest))
        decay = jnp.exp(jnp.where(jnp.isfinite(running.peak), running.peak - peak, -jnp.inf))
    below = jnp.where(allowed, scores - jnp.where(jnp.isfinite(peak), peak, 0), 0)
    weights = jnp.where(allowed, stream.share(below, None if counts is None else align_ranks(below, counts)[1]), 0)
    total = running.total * decay + jnp.sum(weights, axis=-1, keepdims=True)
    if relative.falloff is not None:
        weights = jnp.multiply(*align_ranks(weights, relative.falloff(relative.params, block.places, keys.places)))
    kept = drop(weights, job.attention.dropout, (block.indices[0], keys.indices[0]))
    found = jnp.einsum(
        "...qk,...kv->...qv", kept.astype(keys.value.dtype), keys.value, preferred_element_type=total.dtype
    )
    if relative.mix is not None:
        found += relative.mix(relative.params, kept, block.places, keys.places).astype(found.dtype)
    return Running(peak, total, running.values * decay + found)


def _scores(job: Job, block: Queries, keys: Keys) -> tuple[Array, Bool[Array, "*batch q k"]]:
    """The scores of a block, and which of them are allowed; keys that only fill up the last block are not."""
    attention, relative = job.attention, job.attention.relative
    scores = attention.score.apply(block.query, keys.key, *attention.score_params)
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    if relative.bias is not None:
        scores = jnp.add(*align_ranks(scores, relative.bias(relative.params, block.query, block.places, keys.places)))
    scores, allowed = align_ranks(scores, job.rule.block(block.indices, keys.indices))
    allowed = allowed & align_ranks(scores, keys.indices < job.num_keys)[1]
    return job.stream.bend(scores), jnp.broadcast_to(allowed, scores.shape)


def _count(job: Job, block: Queries, indices: Int[Array, "blocks k"]) -> Array:
    """How many keys each query may attend to."""

    def add(count, index):
        allowed = jnp.logical_and(*align_ranks(job.rule.block(block.indices, index), index < job.num_keys))
        allowed = jnp.broadcast_to(allowed, (*allowed.shape[:-2], len(block.indices), len(index)))
        return count + jnp.sum(allowed, axis=-1, keepdims=True), None

    shape = jax.eval_shape(lambda: add(0, indices[0])[0]).shape
    return jax.lax.scan(add, jnp.zeros(shape, jnp.int32), indices)[0]


def _start(job: Job, block: Queries, by_key: Keys) -> Running:
    """Before the first key: nothing read, or a sink alone."""
    first = jax.tree.map(lambda array: array[0], by_key)
    scores = jax.eval_shape(lambda: _scores(job, block, first)[0])
    column = (*scores.shape[:-1], 1)
    values = jnp.zeros((*scores.shape[:-1], by_key.value.shape[-1]), scores.dtype)
    stream = job.stream
    if not stream.has_peak:
        return Running(jnp.zeros(column, scores.dtype), jnp.zeros(column, scores.dtype), values)
    if not stream.has_sink:
        return Running(jnp.full(column, -jnp.inf, scores.dtype), jnp.zeros(column, scores.dtype), values)
    sink = jnp.asarray((*job.attention.normalizer_params, 0.0)[0], scores.dtype)
    sink = jnp.broadcast_to(sink.reshape((1,) * (scores.ndim - sink.ndim) + sink.shape), column)
    peak = jax.lax.stop_gradient(sink)
    return Running(peak, jnp.exp(sink - peak), values)


def _rule(attention: Attention, query: Array, key: Array) -> MaskRule:
    """The mask as a rule, of the ranks that scores have. Raises ValueError where it does not fit."""
    batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    scores = (*batch, query.shape[-2], key.shape[-2])
    rule = as_rule(attention.mask, *scores[-2:])
    shape = jax.eval_shape(lambda: rule.block(jnp.arange(1), jnp.arange(1))).shape
    require_broadcast("mask", (*shape[:-2], rule.num_queries or 1, rule.num_keys), "scores", scores)
    require_batch_count("mask", (*shape[:-2], rule.num_queries or 1, rule.num_keys), "scores", scores)
    return rule


def _blocks(size: int, query: Array, places: Array | None) -> tuple:
    """Queries, their indices and places, in blocks of `size` that come first; the last is filled up."""
    size = min(size, query.shape[-2])
    count = -(-query.shape[-2] // size)
    index = jnp.arange(count * size).reshape(count, size)
    return _split(query, count, size, -2), index, None if places is None else _split(places, count, size, -1)


def _key_blocks(size: int, key: Array, value: Array, places: Array | None) -> tuple:
    keys, index, places = _blocks(size, key, places)
    return keys, _split(value, len(index), index.shape[1], -2), index, places


def _split(array: Array, count: int, size: int, axis: int) -> Array:
    """[..., n, …] → [count, ..., size, …], filled up with copies of the last."""
    axis += array.ndim
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, count * size - array.shape[axis])
    padded = jnp.pad(array, padding, mode="edge")
    parts = padded.reshape(*array.shape[:axis], count, size, *array.shape[axis + 1 :])
    return jnp.moveaxis(parts, axis, 0)
