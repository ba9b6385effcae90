"""Attention folded together out of blocks of keys, and its exact gradient, in memory that grows with queries + keys.

A block of queries keeps a running peak, sum and pool of the keys that it has read, and blocks of keys are added to
these in any order (Milakov & Gimelshein 2018, alg. 3; Rabe & Staats 2021, §3). What a pair of blocks adds is a function
of the two and of the rows' peak alone: `jax.vjp` of it, at the last peak, is the pair's part of every gradient, given
those of the rows' sums and pools (Dao et al. 2022, alg. 4, for any score, normalizer and bias). A pair of blocks in
which nobody may attend is left out of both.

How keys come to their queries is a `Way`: one device has them all, others pass them around or gather them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attention_jax.ops.attention import Attention
from attention_jax.ops.dropout import drop
from attention_jax.ops.masking import MaskRule
from attention_jax.ops.normalizing import Stream, finite_sink
from attention_jax.ops.shapes import align_ranks


class Job(NamedTuple):
    """What all blocks share: what is asked but for the mask and positions, the mask as a rule, the number of keys."""

    attention: Attention
    rule: MaskRule
    num_keys: int

    @property
    def stream(self) -> Stream:
        stream = self.attention.normalizer.stream
        if stream is None:
            raise ValueError("this normalizer needs whole rows, and has no stream.")
        return stream


class Queries(NamedTuple):
    """A block of queries, their indices, their positions; how many keys each may attend to, where that counts."""

    query: Float[Array, "*batch q d"]
    indices: Int[Array, " q"]
    positions: Any
    num_keys: Int[Array, "*batch q 1"] | None = None


class Keys(NamedTuple):
    """A block of keys and their values, the keys' indices and positions."""

    key: Float[Array, "*batch k d"]
    value: Float[Array, "*batch k v"]
    indices: Int[Array, " k"]
    positions: Any


class Running(NamedTuple):
    """The state of a block of queries after some blocks of keys: the highest score, Σ share, and Σ share · value."""

    peak: Float[Array, "*batch q 1"]
    total: Float[Array, "*batch q 1"]
    values: Float[Array, "*batch q v"]


class Given(NamedTuple):
    """What the gradient of a block of queries needs: its last peak, and the gradients of its sum and pool."""

    peak: Float[Array, "*batch q 1"]
    of_total: Float[Array, "*batch q 1"]
    of_values: Float[Array, "*batch q v"]


def _same(tree: Any) -> Any:
    return tree


class Way(NamedTuple):
    """How keys come to their queries: they are fetched, then read in so many rounds, after each of which they go on.

    The keys' gradients go on with them, and are given back as the keys were fetched.
    """

    rounds: int = 1
    fetch: Callable[[Keys], Keys] = _same
    pass_on: Callable[[Any], Any] = _same
    give_back: Callable[[Any], Any] = _same


ALONE = Way()


def folded(job: Job, queries: Queries, keys: Keys, way: Way = ALONE) -> Float[Array, "blocks *batch q v"]:
    """The pooled values of all queries; blocks are the first axis of all arrays of `queries` and `keys`.

    The indices of a block are neighbours. Gradients are those of all float arrays, of the first order.
    """
    if job.stream.counts:
        queries = queries._replace(
            num_keys=jax.lax.map(functools.partial(_count, job, keys.indices.shape[-1]), queries)
        )
    floats, others = parted((job, queries, keys), is_float)
    arrays, fixed = parted(others, is_array)
    return _folded((fixed, way), floats, arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _folded(fixed: tuple[Any, Way], floats: Any, arrays: Any) -> Float[Array, "blocks *batch q v"]:
    return _forward(fixed, floats, arrays)[0]


def _forward(fixed: tuple[Any, Way], floats: Any, arrays: Any) -> tuple[Array, tuple]:
    rest, way = fixed
    job, queries, keys = joined(floats, arrays, rest)

    def turn(carried, _):
        running, keys = carried
        return (_read(job, queries, keys, running), way.pass_on(keys)), None

    start = _start(job, queries, keys), way.fetch(keys)
    (running, _), _ = jax.lax.scan(turn, start, length=way.rounds)
    total = running.total + _of_sink(job, running.peak)
    values = (running.values / _divisor(job, total)).astype(keys.value.dtype)
    return values, (floats, arrays, running.peak, total, values)


def _backward(fixed: tuple[Any, Way], kept: tuple, gradient: Array) -> tuple:
    """With o = Σ w v / t, row by row: ∂/∂(Σ w v) = do / t, and ∂/∂t = −⟨do, o⟩ / t."""
    (rest, way), (floats, arrays, peak, total, values) = fixed, kept
    job, queries, keys = joined(floats, arrays, rest)
    of_values = gradient.astype(total.dtype) / _divisor(job, total)
    of_total = -jnp.sum(of_values * values, axis=-1, keepdims=True) if job.stream.divides else jnp.zeros_like(total)
    given = Given(peak, of_total, of_values)

    def turn(carried, _):
        keys, sums = carried
        of_job, of_queries, of_keys = _pull(job, queries, keys, given, sums)
        keys, of_keys = way.pass_on((keys, of_keys))
        return (keys, (of_job, of_queries, of_keys)), None

    fetched = way.fetch(keys)
    zeros = jax.tree.map(_zeros, parted((job, queries, fetched), is_float)[0])
    (_, (of_job, of_queries, of_keys)), _ = jax.lax.scan(turn, (fetched, zeros), length=way.rounds)
    if job.stream.has_sink:
        own, others = parted(job, is_float)
        _, pull = jax.vjp(lambda own: _of_sink(joined(own, others), peak), own)
        of_job = jax.tree.map(jnp.add, of_job, *pull(of_total))
    found = of_job, of_queries, way.give_back(of_keys)
    return jax.tree.map(lambda gradient, leaf: gradient.astype(leaf.dtype), found, floats), None


_folded.defvjp(_forward, _backward)


def _read(job: Job, queries: Queries, keys: Keys, running: Running) -> Running:
    """The running sums of all blocks of queries after all these blocks of keys."""

    def of_queries(both):
        block, running = both

        def add(running, keys):
            step = functools.partial(_added, job, block, keys)
            return jax.lax.cond(_may_attend(job, block, keys), step, _same, running), None

        return jax.lax.scan(add, running, keys)[0]

    return jax.lax.map(of_queries, (queries, running))


def _added(job: Job, block: Queries, keys: Keys, running: Running) -> Running:
    """The running sums after one more block of keys."""
    scores, allowed = _scores(job, block, keys)
    peak, decay = running.peak, jnp.ones_like(running.peak)
    if job.stream.has_peak:
        highest = jnp.max(scores, axis=-1, keepdims=True, where=allowed, initial=-jnp.inf)
        peak = jnp.maximum(peak, highest)
        decay = jnp.exp(jnp.where(jnp.isfinite(running.peak), running.peak - peak, -jnp.inf))
    total, values = _shares(job, block, keys, scores, allowed, peak)
    return Running(peak, running.total * decay + total, running.values * decay + values)


def _pull(job: Job, queries: Queries, keys: Keys, given: Given, sums: tuple) -> tuple:
    """The sums of gradients, of the job, of all queries and of these keys, with the part of all pairs of blocks."""

    def of_queries(carried, each):
        (of_job, of_keys), (block, given, of_query) = carried, each

        def of_pair(carried, each):
            keys, of_keys = each
            step = functools.partial(_pulled, job, block, keys, given)
            sums = *carried, of_keys
            *carried, of_keys = jax.lax.cond(_may_attend(job, block, keys), step, _same, sums)
            return tuple(carried), of_keys

        (of_job, of_query), of_keys = jax.lax.scan(of_pair, (of_job, of_query), (keys, of_keys))
        return (of_job, of_keys), of_query

    of_job, of_query, of_keys = sums
    (of_job, of_keys), of_query = jax.lax.scan(of_queries, (of_job, of_keys), (queries, given, of_query))
    return of_job, of_query, of_keys


def _pulled(job: Job, block: Queries, keys: Keys, given: Given, sums: tuple) -> tuple:
    """The sums of gradients with the part of one pair of blocks."""
    floats, others = parted((job, block, keys), is_float)

    def shares(floats):
        job, block, keys = joined(floats, others)
        scores, allowed = _scores(job, block, keys)
        return _shares(job, block, keys, scores, allowed, given.peak)

    (found,) = jax.vjp(shares, floats)[1]((given.of_total, given.of_values))
    return jax.tree.map(lambda total, part: total + part.astype(total.dtype), sums, found)


def _shares(
    job: Job, block: Queries, keys: Keys, scores: Array, allowed: Array, peak: Array
) -> tuple[Float[Array, "*batch q 1"], Float[Array, "*batch q v"]]:
    """What a block of keys adds to Σ share and to Σ share · value, with scores taken from the peak."""
    relative = job.attention.relative
    below = jnp.where(allowed, scores - jnp.where(jnp.isfinite(peak), peak, 0), 0)
    count = None if block.num_keys is None else align_ranks(below, block.num_keys)[1]
    weights = jnp.where(allowed, job.stream.share(below, count), 0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if relative.falloff is not None:
        falloff = relative.falloff(relative.params, block.positions, keys.positions)
        weights = jnp.multiply(*align_ranks(weights, falloff))
    kept = drop(weights, job.attention.dropout, (block.indices[0], keys.indices[0]))
    if job.stream.has_peak or not job.stream.divides:  # others may be too small for the values' dtype
        kept = kept.astype(keys.value.dtype)
    values = jnp.einsum("...qk,...kv->...qv", kept, keys.value, preferred_element_type=total.dtype)
    if relative.mix is not None:
        values += relative.mix(relative.params, kept, block.positions, keys.positions).astype(values.dtype)
    return total, values


def _scores(job: Job, block: Queries, keys: Keys) -> tuple[Array, Bool[Array, "*batch q k"]]:
    """The scores of a block, and which of them are allowed; keys that only pad the last block are not."""
    attention, relative = job.attention, job.attention.relative
    scores = attention.score.apply(block.query, keys.key, *attention.score_params)
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    if relative.bias is not None:
        bias = relative.bias(relative.params, block.query, block.positions, keys.positions)
        scores = jnp.add(*align_ranks(scores, bias))
    scores, allowed = align_ranks(scores, _allowed(job, block.indices, keys.indices))
    return job.stream.bend(scores), jnp.broadcast_to(allowed, scores.shape)


def _allowed(job: Job, queries: Int[Array, " q"], keys: Int[Array, " k"]) -> Bool[Array, "*batch q k"]:
    return jnp.logical_and(*align_ranks(job.rule.block(queries, keys), keys < job.num_keys))


def _may_attend(job: Job, block: Queries, keys: Keys) -> Bool[Array, ""]:
    """Whether any of the queries may attend to any of the keys, as far as the rules' intervals tell."""
    return (keys.indices[0] < job.num_keys) & job.rule.may_allow(block.indices, keys.indices)


def _count(job: Job, size: int, block: Queries) -> Int[Array, "*batch q 1"]:
    """How many keys each query may attend to, counted `size` at a time."""

    def of(keys):
        allowed = _allowed(job, block.indices, keys)
        allowed = jnp.broadcast_to(allowed, (*allowed.shape[:-2], len(block.indices), size))
        return jnp.sum(allowed, axis=-1, keepdims=True)

    starts = jnp.arange(0, job.num_keys, size)
    zeros = jax.tree.map(_zeros, jax.eval_shape(of, jnp.arange(size)))
    return jax.lax.scan(lambda count, first: (count + of(first + jnp.arange(size)), None), zeros, starts)[0]


def _start(job: Job, queries: Queries, keys: Keys) -> Running:
    """The state of all blocks before the first key: empty, and no lower than a sink."""
    first = (jax.tree.map(lambda array: array[0], blocks) for blocks in (queries, keys))
    scores = jax.eval_shape(lambda: _scores(job, *first)[0])
    rows = (len(queries.indices), *scores.shape[:-1])
    zeros = jnp.zeros((*rows, 1), scores.dtype)
    peak = jnp.full_like(zeros, -jnp.inf) if job.stream.has_peak else zeros
    peak = zeros + _sink(job, peak) if job.stream.has_sink else peak
    return Running(peak, zeros, jnp.zeros((*rows, keys.value.shape[-1]), scores.dtype))


def _of_sink(job: Job, peak: Array) -> Array:
    """exp(s − peak), what a sink adds to a row's sum."""
    return jnp.exp(_sink(job, peak) - peak) if job.stream.has_sink else jnp.zeros_like(peak)


def _sink(job: Job, like: Array) -> Array:
    sink = finite_sink((*job.attention.normalizer_params, 0.0)[0], like.dtype)
    return sink.reshape((1,) * (like.ndim - sink.ndim) + sink.shape)


def _divisor(job: Job, total: Array) -> Array:
    return jnp.where(total == 0, 1, total) if job.stream.divides else jnp.ones_like(total)


def _zeros(leaf: Any) -> Array:
    """Zeros for sums of many such arrays: in float32 or more."""
    kind = leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.integer) else jnp.promote_types(leaf.dtype, jnp.float32)
    return jnp.zeros(leaf.shape, kind)


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def is_float(leaf: Any) -> bool:
    return is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def parted(tree: Any, holds: Callable[[Any], bool]) -> tuple[Any, Any]:
    """The tree with the leaves for which something holds, and the tree with the others; None stands for the rest."""
    kept = jax.tree.map(lambda leaf: leaf if holds(leaf) else None, tree)
    return kept, jax.tree.map(lambda leaf: None if holds(leaf) else leaf, tree)


def joined(*trees: Any) -> Any:
    """The tree that was parted into these."""
    first = lambda *leaves: next((leaf for leaf in leaves if leaf is not None), None)  # noqa: E731
    return jax.tree.map(first, *trees, is_leaf=lambda leaf: leaf is None)
