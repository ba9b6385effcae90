"""Position encodings that depend on how far a key is from its query: biases on scores, and Shaw's term on values."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.encoding import Encoding, PairBias, require_least
from attention_jax.ops.shapes import align_ranks


def alibi_slopes(num_heads: int) -> Float[Array, " heads"]:
    """2^(−8h / n) for heads h = 1 … n where n is a power of two (Press et al. 2022, §3).

    For other n: the slopes of the power of two below n, then every other slope of the power above (their code's rule).
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2 ** (-8 * head / (2 * power)) for head in range(1, 2 * power + 1, 2)]
    return jnp.array((slopes + between)[:num_heads])


def t5_bucket(
    relative_position: Int[Array, "..."], *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128
) -> Int[Array, "..."]:
    """The bucket of the distance key − query (Raffel et al. 2020, §2.1).

    Of a side's n buckets the first e = ⌊n / 2⌋ hold one distance each. A distance d ≥ e is in bucket
    e + ⌊ln(d / e) / ln(max_distance / e) · (n − e)⌋, at most n − 1. Bidirectional: half of the buckets are for keys
    behind the query, half for keys ahead. Otherwise all are for keys behind, and keys ahead are in bucket 0.
    """
    buckets, side = num_buckets, jnp.zeros_like(relative_position)
    if bidirectional:
        buckets //= 2
        side = jnp.where(relative_position > 0, buckets, 0)
        distance = jnp.abs(relative_position)
    else:
        distance = jnp.maximum(-relative_position, 0)
    exact = buckets // 2
    ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact) / math.log(max_distance / exact)
    far = jnp.minimum(exact + jnp.floor(ratio * (buckets - exact) + 1e-6).astype(jnp.int32), buckets - 1)
    return side + jnp.where(distance < exact, distance, far)


def _relative(query_positions: Array, key_positions: Array) -> Array:
    """j − i, `[..., Q, K]`."""
    return jnp.subtract(*align_ranks(key_positions[..., None, :], query_positions[..., :, None]))


def by_pair(pairs: Callable[[Any, int], PairBias]) -> Encoding:
    """The encoding of a bias that is elementwise in two positions."""

    def bias(params, query, query_positions, key_positions):
        numbers, apply, _ = pairs(params, query.shape[-3])
        positions = query_positions[..., None, :, None], key_positions[..., None, None, :]
        *columns, queries, keys = align_ranks(*jnp.moveaxis(numbers, -1, 0)[..., None, None], *positions)
        return apply(columns, queries, keys)

    return Encoding(bias=bias, pairs=pairs)


def alibi() -> Encoding:
    """−m_h |i − j| (Press et al. 2022, §3)."""
    return by_pair(lambda params, heads: PairBias(alibi_slopes(heads)[:, None], _alibi))


def _alibi(numbers: Sequence[Array], query_position: Array, key_position: Array) -> Array:
    (slope,) = numbers
    return -(slope * _between(query_position, key_position))


def _between(query_position: Array, key_position: Array) -> Array:
    """|j − i|."""
    return jnp.abs(key_position - query_position).astype(jnp.float32)


def t5(bidirectional: bool | None = None, num_buckets: int = 32, max_distance: int = 128) -> Encoding:
    """A learned bias for each bucket and head (Raffel et al. 2020, §2.1).

    `bidirectional` None: unless the spec is causal. The parameter's name, "both_ways" or "causal", keeps the choice.
    """
    require_least(num_buckets=(num_buckets, 4), max_distance=(max_distance, num_buckets // 2 + 1))

    def init(key, spec):
        both = not spec.is_causal if bidirectional is None else bidirectional
        name = "both_ways" if both else "causal"
        return {name: 0.02 * jax.random.normal(key, (num_buckets, spec.heads))}

    def opened(params):
        ((name, table),) = params.items()
        asked = {"bidirectional": name == "both_ways", "num_buckets": num_buckets, "max_distance": max_distance}
        return table, functools.partial(t5_bucket, **asked)

    def bias(params, query, query_positions, key_positions):
        del query
        table, bucket = opened(params)
        return jnp.moveaxis(table[bucket(_relative(query_positions, key_positions))], -1, -3)

    def pairs(params, heads):
        del heads
        table, bucket = opened(params)
        return PairBias(table.T, functools.partial(_t5, bucket), bucket)

    return Encoding(init=init, bias=bias, pairs=pairs)


def _t5(bucket: Callable, numbers: Sequence[Array], query_position: Array, key_position: Array) -> Array:
    return _looked_up(numbers, bucket(key_position - query_position))


def _looked_up(numbers: Sequence[Array], index: Array, bit: int = 1) -> Array:
    """numbers[index] without a gather: by the bits of the index from `bit` on."""
    if len(numbers) == 1:
        return numbers[0]
    even, odd = (_looked_up(numbers[first::2], index, 2 * bit) for first in (0, 1))
    return jnp.where((index & bit) == 0, even, odd)


def shaw(clip: int = 16) -> Encoding:
    """Shaw et al. 2018, eq. 3–4: vectors for each distance up to `clip`, added to keys and to values."""
    require_least(clip=(clip, 1))

    def init(key, spec):
        names = ("keys", "values")
        shape = (2 * clip + 1, spec.head_size)
        return {n: 0.02 * jax.random.normal(k, shape) for n, k in zip(names, jax.random.split(key), strict=True)}

    def rows(query_positions, key_positions):
        return jnp.clip(_relative(query_positions, key_positions), -clip, clip) + clip

    def bias(params, query, query_positions, key_positions):
        keys = params["keys"].astype(query.dtype)
        scores_Qx2k = jnp.einsum("...qd,pd->...qp", query, keys, preferred_element_type=jnp.float32)
        scores_Qx2k = scores_Qx2k / math.sqrt(query.shape[-1])
        index = rows(query_positions, key_positions)[..., None, :, :]
        shape = jnp.broadcast_shapes(scores_Qx2k.shape[:-1], index.shape[:-1])
        scores_Qx2k = jnp.broadcast_to(scores_Qx2k, (*shape, scores_Qx2k.shape[-1]))
        return jnp.take_along_axis(scores_Qx2k, jnp.broadcast_to(index, (*shape, index.shape[-1])), axis=-1)

    def mix(params, weights, query_positions, key_positions):
        index = rows(query_positions, key_positions)[..., None, :, :]
        mass = jax.nn.one_hot(index, 2 * clip + 1, dtype=weights.dtype)
        mass_Qx2k = jnp.einsum("...qk,...qkp->...qp", weights, mass)
        return mass_Qx2k @ params["values"].astype(weights.dtype)

    return Encoding(init=init, bias=bias, mix=mix, is_shared=False)


def fire(hidden: int = 32, threshold: float = 16.0) -> Encoding:
    """f(ψ(i − j) / ψ(max(L, i))), ψ(x) = ln(c x + 1), with learned c, L and network f (Li et al. 2024, eq. 4).

    L is learned as a multiple of `threshold`, which should be less than the length that is trained on.
    """
    require_least(hidden=(hidden, 1), threshold=(threshold, 1))

    def init(key, spec):
        first, second = jax.random.split(key)
        return {
            "hidden": jax.random.normal(first, (hidden,)),
            "hidden_bias": jnp.zeros(hidden),
            "out": jax.random.normal(second, (hidden, spec.heads)) / math.sqrt(hidden),
            "c": jnp.array(0.1),
            "threshold": jnp.array(1.0),
        }

    def bias(params, query, query_positions, key_positions):
        del query
        positions = align_ranks(query_positions[..., :, None], key_positions[..., None, :])
        ratio = _log_ratio(params["c"], params["threshold"] * threshold, *positions)
        inner = jnp.einsum("...qk,h->...qkh", ratio, params["hidden"])
        features = jax.nn.relu(jnp.add(*align_ranks(inner, params["hidden_bias"])))
        return jnp.moveaxis(features @ params["out"], -1, -3)

    def pairs(params, heads):
        of_all = params["c"][None], params["threshold"][None] * threshold, params["hidden"], params["hidden_bias"]
        shared = jnp.concatenate(of_all)
        numbers = jnp.concatenate([jnp.broadcast_to(shared, (heads, len(shared))), params["out"].T], axis=1)
        return PairBias(numbers, _fire)

    return Encoding(init=init, bias=bias, pairs=pairs, kinds=("decoder",), is_shared=False)


def _fire(numbers: Sequence[Array], query_position: Array, key_position: Array) -> Array:
    """The network, one hidden unit after another."""
    c, least, *network = numbers
    ratio = _log_ratio(c, least, query_position, key_position)
    size = len(network) // 3
    units = zip(network[:size], network[size : 2 * size], network[2 * size :], strict=True)
    return sum((jax.nn.relu(ratio * hidden + bias) * out for hidden, bias, out in units), jnp.float32(0))


def _log_ratio(c: Array, least: Array, query_position: Array, key_position: Array) -> Array:
    """ψ(i − j) / ψ(max(L, i)); keys ahead count as at the query."""
    psi = lambda x: jnp.log(jnp.abs(c * x) + 1)  # noqa: E731
    distance = jnp.maximum(query_position - key_position, 0).astype(jnp.float32)
    scale = jnp.maximum(jnp.abs(least), query_position.astype(jnp.float32))
    return psi(distance) / jnp.maximum(psi(scale), 1e-6)


def kerple(form: str) -> Encoding:
    """Of form "log" −r₁ ln(1 + r₂ |i − j|), else −r₁ |i − j|^r₂ with r₂ ≤ 2; each head learns its r₁, r₂ > 0.

    Chi et al. 2022, §3.3.
    """

    def init(key, spec):
        one, other = jax.random.split(key)
        draw = lambda key, top: jax.random.uniform(key, (spec.heads,), minval=0.1, maxval=top)  # noqa: E731
        return {"r1": draw(one, 2.0), "r2": draw(other, 1.0)}

    def pairs(params, heads):
        del heads
        numbers = jnp.stack([_at_least(1e-2, params[name]) for name in ("r1", "r2")], axis=-1)
        return PairBias(numbers, _KERPLE[form])

    return dataclasses.replace(by_pair(pairs), init=init)


def _kerple_log(numbers: Sequence[Array], query_position: Array, key_position: Array) -> Array:
    r1, r2 = numbers
    return -r1 * jnp.log1p(r2 * _between(query_position, key_position))


def _kerple_power(numbers: Sequence[Array], query_position: Array, key_position: Array) -> Array:
    (r1, r2), distance = numbers, _between(query_position, key_position)
    is_near = distance == 0  # a power of 0 has no gradient
    return jnp.where(is_near, 0.0, -r1 * jnp.where(is_near, 1.0, distance) ** _at_most(2.0, r2))


_KERPLE = {"log": _kerple_log, "power": _kerple_power}


def _at_least(bound: float, parameter: Array) -> Array:
    """max(parameter, bound), with the gradient of the parameter itself, so that one below the bound can come back."""
    return parameter + jax.lax.stop_gradient(jnp.maximum(parameter, bound) - parameter)


def _at_most(bound: float, parameter: Array) -> Array:
    """min(parameter, bound), as `_at_least`."""
    return -_at_least(-bound, -parameter)
