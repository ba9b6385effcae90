"""What weights say without a map of them: of a block of queries' weights only statistics are kept, then the next's.

A block has the reference's weights of all keys, and as many queries as fit into a fixed number of weights. So memory
grows with queries + keys, and not with their product; and whatever the reference computes has statistics: any score,
normalizer, mask and bias. Gradients compute every block again.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attention_jax.ops.attention import Attended, Attention
from attention_jax.ops.masking import MaskRule, fitting_rule
from attention_jax.ops.pooling import Values, attention_of, by_rows, pooled
from attention_jax.ops.shapes import align_ranks, require_batch

WEIGHTS = 2**20  # that are held at once, of all batch axes: about what a cache holds


class Summary(NamedTuple):
    """What statistics are asked of weights.

    `top`: of how many keys each query's largest weights are told, of all if there are fewer. `parts` say of each key to
    which part of its text it belongs, from 0 to before `num_parts`; a key with another number is in no part. Positions
    are those of queries and keys in their text, 0, 1, … if they are None.
    """

    top: int = 4
    num_parts: int = 0
    parts: Int[Array, "*#batch k"] | None = None
    query_positions: Int[Array, "*#batch q"] | None = None
    key_positions: Int[Array, "*#batch k"] | None = None

    def with_axes(self, count: int) -> "Summary":
        """The same with `count` axes of size 1, for heads, before its queries and keys."""
        axes = tuple(range(-1 - count, -1))
        widened = (array if array is None else jnp.expand_dims(array, axes) for array in self[2:])
        return Summary(self.top, self.num_parts, *widened)

    def check(self, queries: int, keys: int) -> None:
        """Raise ValueError for numbers below 0, for parts without their number, and for arrays of other lengths."""
        for name in ("top", "num_parts"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: needs 0 or more.")
        if (self.parts is None) != (self.num_parts == 0):
            raise ValueError(f"num_parts={self.num_parts}: give parts and their number, 1 or more, or neither.")
        for name, length in (("parts", keys), ("query_positions", queries), ("key_positions", keys)):
            array = getattr(self, name)
            if array is not None and array.shape[-1] != length:
                raise ValueError(f"{name} has shape {array.shape}, needs {length} along its last axis.")


SUMMARY = Summary()


class Statistics(NamedTuple):
    """What the weights α of each query say; a query that attends to nothing has zeros.

    - `entropy`: −Σ_j |α_j| ln |α_j|, in nats.
    - `distance`: Σ_j α_j |i − j|, in tokens, for a query at position i and keys at positions j.
    - `first`: Σ α over keys at position 0, where "attention sinks" are (Xiao et al. 2023, §3.1).
    - `parts`: Σ α over the keys of each part.
    - `top_weights`, `top_keys`: the largest weights, in their order, and the indices of their keys; a weight of 0 has
      the index 0.

    Where a normalizer's weights need not sum to 1, no sum here is divided by theirs. Families that subtract or mix maps
    have weights below 0; `distance`, `first` and `parts` count them as such.
    """

    entropy: Float[Array, "*batch q"]
    distance: Float[Array, "*batch q"]
    first: Float[Array, "*batch q"]
    parts: Float[Array, "*batch q parts"]
    top_weights: Float[Array, "*batch q top"]
    top_keys: Int[Array, "*batch q top"]


def attend_with_statistics(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    summary: Summary = SUMMARY,
    **asked: Any,
) -> tuple[Values, Statistics]:
    """The values of `attend`, and statistics of the weights, in memory that grows with Q + K.

    `asked` are the keywords of `attend`. Raises ValueError for shapes that do not fit, for dropout, because statistics
    are of all weights, and for a summary that does not fit.
    """
    return pooled_with_statistics(query, key, value, attention_of(**asked), summary)


def pooled_with_statistics(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    attention: Attention,
    summary: Summary = SUMMARY,
    attend: Callable[[Array, Array, Array, Attention], Attended] = pooled,
) -> tuple[Values, Statistics]:
    """`attend_with_statistics` of a record; `attend` gives the values and weights of some queries."""
    attention = attention._replace(with_weights=True)
    summary.check(query.shape[-2], key.shape[-2])
    if attention.dropout is not None:
        raise ValueError("dropout: statistics are of attention without it. Leave it out.")
    require_batch(query=query, key=key)
    (queries, keys), batch = (query.shape[-2], key.shape[-2]), np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    rule = fitting_rule(attention.mask, (*batch, queries, keys))

    def of_rows(rows: Int[Array, " q"]) -> tuple[Array, ...]:
        own = _at_rows(attention, rule, rows, queries)
        found: Any = attend(jnp.take(query, rows, axis=-2), key, value, own)
        weights = found.weights.astype(jnp.promote_types(found.weights.dtype, jnp.float32))
        return found.values, *_told(weights, rows, summary)

    size = max(WEIGHTS // max(math.prod(batch) * keys, 1), 1)
    values, sums, top_weights, top_keys = by_rows(of_rows, queries, size)
    entropy, distance, first = jnp.moveaxis(sums[..., :3], -1, 0)
    return values, Statistics(entropy, distance, first, sums[..., 3:], top_weights, top_keys)


def _at_rows(attention: Attention, rule: MaskRule, rows: Int[Array, " q"], queries: int) -> Attention:
    """The record for some queries alone."""

    def taken(array, axis):
        return array if array is None or array.shape[axis] < queries else jnp.take(array, rows, axis=axis)

    relative, replacement = attention.relative, attention.replacement
    return attention._replace(
        mask=rule.block(rows, jnp.arange(rule.num_keys)),
        bias=taken(attention.bias, -2),
        relative=relative._replace(queries=jax.tree.map(lambda array: taken(array, -1), relative.queries)),
        replacement=replacement and replacement._replace(weights=taken(replacement.weights, -2)),
    )


def _told(weights: Float[Array, "*batch q k"], rows: Int[Array, " q"], summary: Summary) -> tuple[Array, ...]:
    """Entropy, distance, mass on the first key and on each part, side by side; the largest weights; their keys."""
    at = rows if summary.query_positions is None else jnp.take(summary.query_positions, rows, axis=-1)
    positions = jnp.arange(weights.shape[-1]) if summary.key_positions is None else summary.key_positions
    between = jnp.abs(jnp.subtract(*align_ranks(at[..., :, None], positions[..., None, :])))
    size = jnp.abs(weights)
    sums = [
        jnp.sum(-size * jnp.log(jnp.where(size > 0, size, 1)), axis=-1),  # finite gradients, also at 0
        jnp.sum(jnp.multiply(*align_ranks(weights, between.astype(weights.dtype))), axis=-1),
        *(_mass(weights, is_in) for is_in in (positions == 0, *_parts(summary))),
    ]
    top_weights, top_keys = jax.lax.top_k(weights, min(summary.top, weights.shape[-1]))
    return jnp.stack(sums, axis=-1), top_weights, jnp.where(top_weights > 0, top_keys, 0)


def _parts(summary: Summary) -> list[Array]:
    """For each part, which keys are in it."""
    return [] if summary.parts is None else [summary.parts == part for part in range(summary.num_parts)]


def _mass(weights: Float[Array, "*batch q k"], is_in: Array) -> Float[Array, "*batch q"]:
    return jnp.sum(jnp.where(align_ranks(weights, is_in[..., None, :])[1], weights, 0), axis=-1)
