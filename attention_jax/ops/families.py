"""Families of attention that keep a map: what they do to heads beside scoring, normalising and pooling.

Maps are `[..., heads, Q, K]`: all heads of a layer, and whole rows of keys. `allowed` is the mask as an array of the
same rank.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attention_jax.ops.attention import Attended, Attention, Relative
from attention_jax.ops.normalization import rms_norm
from attention_jax.ops.shapes import align_ranks, require_shape

Map = Float[Array, "*batch h q k"]
Allowed = Bool[Array, "*#batch #h #q #k"]
Attend = Callable[[Array, Array, Array, Attention], Attended]  # (query, key, value, what is asked)


# --- talking heads ----------------------------------------------------------------------------------------------------


def talk(maps: Map, matrix: Float[Array, "h n"]) -> Float[Array, "*batch n q k"]:
    """Σ_h a_h P_hn: every head's map is a learned sum of all heads' (Shazeer et al. 2020, §3).

    Talking heads mix scores by one matrix before they are normalised, and weights by another after.
    """
    return jnp.einsum("...hqk,hn->...nqk", maps, matrix.astype(maps.dtype))


# --- differential attention -------------------------------------------------------------------------------------------


def first_lambda(depth: Array | int) -> Array:
    """λ_init = 0.8 − 0.6 exp(−0.3 depth), of the layer number `depth`, from 0 on (Ye et al. 2024, §2.1)."""
    return 0.8 - 0.6 * jnp.exp(-0.3 * jnp.asarray(depth, jnp.float32))


def differential_lambda(vectors: Float[Array, "4 d"], depth: Array | int) -> Float[Array, ""]:
    """λ = exp(λ_q1 · λ_k1) − exp(λ_q2 · λ_k2) + λ_init (Ye et al. 2024, eq. 2); rows are λ_q1, λ_k1, λ_q2, λ_k2."""
    require_shape("vectors", vectors, (4, vectors.shape[-1]), "they are λ_q1, λ_k1, λ_q2 and λ_k2")
    q1, k1, q2, k2 = vectors.astype(jnp.promote_types(vectors.dtype, jnp.float32))
    return jnp.exp(jnp.sum(q1 * k1)) - jnp.exp(jnp.sum(q2 * k2)) + first_lambda(depth)


def differential(attend: Attend, factor: Float[Array, ""]) -> Attend:
    """(normalise(score(q₁, k₁)) − λ normalise(score(q₂, k₂))) v (Ye et al. 2024, eq. 1), λ being `factor`.

    q₁ and q₂ are the halves of a query's features, k₁ and k₂ of a key's. It is what `attend` says of the first halves
    less λ times what it says of the second, whatever computes them. Dropout is drawn for each; weights that are
    replaced stand for the difference.
    """

    def attended(query: Array, key: Array, value: Array, attention: Attention) -> Attended:
        (q1, q2), (k1, k2) = (jnp.split(x, 2, axis=-1) for x in (query, key))
        first, second = attend(q1, k1, value, attention), attend(q2, k2, value, _of_second(attention))
        less = lambda a, b: (a - factor * b).astype(a.dtype)  # noqa: E731  # rounded once
        weights = None if first.weights is None or second.weights is None else less(first.weights, second.weights)
        return Attended(less(first.values, second.values), weights)

    return attended


def _of_second(attention: Attention) -> Attention:
    dropout, replacement = attention.dropout, attention.replacement
    return attention._replace(
        dropout=dropout and dropout.fold(2),
        replacement=replacement and replacement._replace(weights=jnp.zeros_like(replacement.weights)),
    )


def differential_norm(
    outputs: Float[Array, "*batch h q f"], gain: Float[Array, " f"], depth: Array | int
) -> Float[Array, "*batch h q f"]:
    """(1 − λ_init) RMSNorm(o_h) of every head by itself (Ye et al. 2024, eq. 3)."""
    return (rms_norm(outputs, gain) * (1 - first_lambda(depth))).astype(outputs.dtype)


# --- gated outputs ----------------------------------------------------------------------------------------------------


def gated(
    outputs: Float[Array, "batch h q f"], x: Float[Array, "batch q d"], matrix: Float[Array, "d n"]
) -> Float[Array, "batch h q f"]:
    """o ∘ σ(x W) of a layer's input x, before heads are joined (Qiu et al. 2025, §2.2, "SDPA output gating").

    W has a column for each feature of every head, or one for each head.
    """
    heads = outputs.shape[-3]
    gates_BxQxN = jax.nn.sigmoid(
        jnp.einsum("...d,dn->...n", x, matrix.astype(x.dtype), preferred_element_type=jnp.float32)
    )
    gates_BxHxQxF = jnp.moveaxis(gates_BxQxN.reshape(*gates_BxQxN.shape[:-1], heads, -1), -2, -3)
    return outputs * gates_BxHxQxF.astype(outputs.dtype)


# --- forgetting attention ---------------------------------------------------------------------------------------------


def log_forget(
    x: Float[Array, "*batch t d"], matrix: Float[Array, "d h"], bias: Float[Array, " h"]
) -> Float[Array, "*batch h t"]:
    """ln f = ln σ(x W + b), how much of what came before each token each head keeps (Lin et al. 2025, §3)."""
    logits = jnp.einsum("...d,dh->...h", x, matrix.astype(x.dtype), preferred_element_type=jnp.float32)
    return jnp.swapaxes(jax.nn.log_sigmoid(jnp.add(*align_ranks(logits, bias.astype(jnp.float32)))), -1, -2)


def decay(query_sums: Float[Array, "*batch q"], key_sums: Float[Array, "*batch k"]) -> Float[Array, "*batch q k"]:
    """Σ_{l = j+1 … i} ln f_l = c_i − c_j, with c the sums of ln f up to a token (Lin et al. 2025, §3).

    It is added to scores, and needs blocks of queries and keys alone.
    """
    return query_sums[..., :, None] - key_sums[..., None, :]


class Placed(NamedTuple):
    """Positions, and the sums of ln f up to them."""

    positions: Any
    sums: Float[Array, "*batch t"]


def with_decay(relative: Relative, log_forgets: Float[Array, "*batch t"]) -> Relative:
    """A text's `Relative` with `decay` added to its bias."""
    sums = jnp.cumsum(log_forgets, axis=-1)

    def at_positions(function: Callable | None) -> Callable | None:
        return function and (
            lambda params, *more: function(params, *more[:-2], *(placed.positions for placed in more[-2:]))
        )

    def bias(params, query, queries, keys):
        found = decay(queries.sums, keys.sums)
        own = at_positions(relative.bias)
        return found if own is None else jnp.add(*align_ranks(found, own(params, query, queries, keys)))

    placed = {"queries": Placed(relative.queries, sums), "keys": Placed(relative.keys, sums)}
    return relative._replace(
        bias=bias, falloff=at_positions(relative.falloff), mix=at_positions(relative.mix), pairs=None, **placed
    )


def decay_of_rows(
    log_forgets: Float[Array, "*batch h k"], allowed: Bool[Array, "*#batch #h #q k"]
) -> Float[Array, "*batch h q k"]:
    """`decay` where queries read other texts of the same keys: Σ of ln f over the keys after j that each may attend to.

    The last key that a query may attend to is its own.
    """
    kept = jnp.where(allowed, log_forgets[..., None, :], 0)
    return jax.lax.cumsum(kept, axis=kept.ndim - 1, reverse=True) - kept


# --- selective attention ----------------------------------------------------------------------------------------------


def selections(scores: Float[Array, "*batch q k"], allowed: Bool[Array, "*#batch #q k"]) -> Float[Array, "*batch q k"]:
    """max(0, a_ij) of the head that selects: how much less later queries are to read of key j, for query i says so.

    0 for keys that a query may not attend to, for its own, which is the last that it may attend to, and for the first
    one (Leviathan et al. 2024, §3: a token masks neither itself nor the beginning).
    """
    allowed = jnp.broadcast_to(allowed, scores.shape)
    up_to = jnp.cumsum(allowed, axis=-1)
    is_between = allowed & (up_to > 1) & (up_to < up_to[..., -1:])
    return jnp.where(is_between, jax.nn.relu(scores), 0)


def selected_before(
    found: Float[Array, "batch q k"], taken: Float[Array, "batch *texts room"] | None = None
) -> Float[Array, "batch q k"]:
    """F_ij = Σ_{l < i} s_lj of `selections` s: what is taken from every head's score (Leviathan et al. 2024, §3).

    `taken` are the sums of queries that were read before. Those of several texts, `[batch, texts, room]`, are for
    queries that each go on with one of them; of the keys of one time there then are so many, side by side.
    """
    if taken is not None and taken.ndim == found.ndim:
        return jnp.repeat(taken, found.shape[-1] // taken.shape[-1], axis=-1)
    earlier = jnp.concatenate([jnp.zeros_like(found[..., :1, :]), found[..., :-1, :]], axis=-2)
    sums = jnp.cumsum(earlier, axis=-2)
    return sums if taken is None else sums + taken[..., None, :]


def selected_after(
    found: Float[Array, "batch q k"], taken: Float[Array, "batch *texts room"]
) -> Float[Array, "batch *texts room"]:
    """`taken`, after queries with these selections."""
    if taken.ndim == found.ndim:
        return taken + jnp.sum(found.reshape(*taken.shape, -1), axis=-1)
    return taken + jnp.sum(found, axis=-2)


# --- contextual positions ---------------------------------------------------------------------------------------------


def contextual_positions(scores: Map, allowed: Allowed) -> Map:
    """p_ij = Σ_{l = j … i} σ(a_il): how many keys of the kind that a query looks for there are from key j on.

    Only keys that the query may attend to count (Golovneva et al. 2024, §4).
    """
    gates = jnp.where(allowed, jax.nn.sigmoid(scores), 0)
    return jax.lax.cumsum(gates, axis=gates.ndim - 1, reverse=True)


def contextual(
    scores: Map, query: Float[Array, "*batch h q d"], allowed: Allowed, table: Float[Array, "positions d"]
) -> Map:
    """a_ij + qᵢ · e[p_ij] / √d, with e between two integers on the line that joins theirs (Golovneva et al. 2024, §4).

    `table` has e of the positions 0, 1, …; those further away are the last.
    """
    last = len(table) - 1
    rounded = table.astype(query.dtype)
    of_integers = jnp.einsum("...qd,pd->...qp", query, rounded, preferred_element_type=scores.dtype)
    of_integers /= math.sqrt(query.shape[-1])
    positions = jnp.minimum(contextual_positions(scores, allowed), last)
    below = jax.lax.stop_gradient(jnp.floor(positions))
    index, share = below.astype(jnp.int32), positions - below
    low, high = (jnp.take_along_axis(of_integers, at, axis=-1) for at in (index, jnp.minimum(index + 1, last)))
    return scores + low + share * (high - low)
