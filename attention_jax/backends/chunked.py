"""Attention block by block: memory grows with queries + keys, not with their product; time is as in the reference.

Each block of queries reads the keys block after block, and keeps a running peak, sum and pool of what it has read
(Milakov & Gimelshein 2018, alg. 3; Rabe & Staats 2021, §3). Gradients compute every block again. Masks, biases and
dropout are made for one block at a time: from rules, from positions, and from hashed logical indices.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attention_jax.backends.record import Call, first_of
from attention_jax.ops.attention import Attended, Attention
from attention_jax.ops.dropout import drop
from attention_jax.ops.masking import MaskRule, fitting_rule
from attention_jax.ops.normalizing import Stream
from attention_jax.ops.shapes import align_ranks, require_batch, require_same_size


def refusal(attention: Attention, call: Call | None = None) -> str:
    """Why this backend cannot do what is asked; "" if it can. It takes every dtype and length."""
    del call
    reasons = {
        "it never makes all weights": attention.with_weights or attention.replacement is not None,
        "a score by the positions of keys needs all keys at once": attention.score.room is not None,
        "this normalizer needs whole rows": attention.normalizer.stream is None,
        "a bias that is an array is as large as the weights that it avoids (give a function of positions)": (
            attention.bias is not None
        ),
    }
    return first_of(reasons)


class Job(NamedTuple):
    """What all blocks share: what is asked, the normalizer's stream, the mask as a rule, and the number of keys."""

    attention: Attention
    stream: Stream
    rule: MaskRule
    num_keys: int


class Queries(NamedTuple):
    """A block of queries, their indices among all queries, and their positions."""

    query: Float[Array, "*batch q d"]
    indices: Int[Array, " q"]
    positions: Any


class Keys(NamedTuple):
    """A block of keys and their values, the keys' indices among all keys, and their positions."""

    key: Float[Array, "*batch k d"]
    value: Float[Array, "*batch k v"]
    indices: Int[Array, " k"]
    positions: Any


class Running(NamedTuple):
    """The state of a block of queries after some blocks of keys: the highest score, Σ share, and Σ share · value."""

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
    """The attention that the record asks for, in blocks of `blocks` = (queries, keys)."""
    require_batch(key=key, value=value)
    require_same_size(-2, key=key, value=value)
    relative, stream = attention.relative, attention.normalizer.stream
    if stream is None:
        raise ValueError(f"backend='chunked': {refusal(attention)}.")
    if not query.shape[-2] or not key.shape[-2]:
        batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        return Attended(jnp.zeros((*batch, query.shape[-2], value.shape[-1]), value.dtype), None)
    batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    rule = fitting_rule(attention.mask, (*batch, query.shape[-2], key.shape[-2]))
    job = Job(attention, stream, rule, key.shape[-2])
    by_query = Queries(*_blocks(blocks[0], query, relative.queries))
    by_key = Keys(*_key_blocks(blocks[1], key, value, relative.keys))
    read = jax.checkpoint(functools.partial(_read, job, value.dtype), prevent_cse=False)
    _, found = jax.lax.scan(lambda _, block: (None, read(block, by_key)), None, by_query)
    joined = jnp.moveaxis(found, 0, -3)  # [..., blocks, q, V]
    joined = joined.reshape(*joined.shape[:-3], -1, joined.shape[-1])
    return Attended(joined[..., : query.shape[-2], :], None)


def _read(job: Job, dtype, block: Queries, by_key: Keys) -> Float[Array, "*batch q v"]:
    """The pooled values of one block of queries, from all keys."""
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
        weights = jnp.multiply(
            *align_ranks(weights, relative.falloff(relative.params, block.positions, keys.positions))
        )
    kept = drop(weights, job.attention.dropout, (block.indices[0], keys.indices[0]))
    found = jnp.einsum(
        "...qk,...kv->...qv", kept.astype(keys.value.dtype), keys.value, preferred_element_type=total.dtype
    )
    if relative.mix is not None:
        found += relative.mix(relative.params, kept, block.positions, keys.positions).astype(found.dtype)
    return Running(peak, total, running.values * decay + found)


def _scores(job: Job, block: Queries, keys: Keys) -> tuple[Array, Bool[Array, "*batch q k"]]:
    """The scores of a block, and which of them are allowed; keys that only pad the last block are not."""
    attention, relative = job.attention, job.attention.relative
    scores = attention.score.apply(block.query, keys.key, *attention.score_params)
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    if relative.bias is not None:
        bias = relative.bias(relative.params, block.query, block.positions, keys.positions)
        scores = jnp.add(*align_ranks(scores, bias))
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
    """The state before the first key: empty, or with the sink alone."""
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


def _blocks(size: int, query: Array, positions: Array | None) -> tuple:
    """Queries, their indices and positions in blocks of `size`, with blocks as the first axis; the last is padded."""
    size = min(size, query.shape[-2])
    count = -(-query.shape[-2] // size)
    index = jnp.arange(count * size).reshape(count, size)
    return _split(query, count, size, -2), index, None if positions is None else _split(positions, count, size, -1)


def _key_blocks(size: int, key: Array, value: Array, positions: Array | None) -> tuple:
    keys, index, positions = _blocks(size, key, positions)
    return keys, _split(value, len(index), index.shape[1], -2), index, positions


def _split(array: Array, count: int, size: int, axis: int) -> Array:
    """[..., n, …] → [count, ..., size, …], padded with copies of the last entry."""
    axis += array.ndim
    if missing := count * size - array.shape[axis]:
        last = jax.lax.slice_in_dim(array, -1, None, axis=axis)
        array = jnp.concatenate([array, jnp.repeat(last, missing, axis=axis)], axis=axis)
    parts = array.reshape(*array.shape[:axis], count, size, *array.shape[axis + 1 :])
    return jnp.moveaxis(parts, axis, 0)
