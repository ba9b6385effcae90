"""Position encodings that depend on how far a key is from its query: biases on scores, and Shaw's term on values."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.encoding import Encoding, require_least
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


def _distance(query_positions: Array, key_positions: Array) -> Array:
    """|j − i| as heads see it, `[..., 1, Q, K]`."""
    return jnp.abs(_relative(query_positions, key_positions)).astype(jnp.float32)[..., None, :, :]


def alibi(params: Any, query: Array, query_positions: Array, key_positions: Array) -> Array:
    """−m_h |i − j|."""
    del params
    slopes = alibi_slopes(query.shape[-3])[:, None, None]
    return -jnp.multiply(*align_ranks(slopes, _distance(query_positions, key_positions)))


def t5(bidirectional: bool | None = None, num_buckets: int = 32, max_distance: int = 128) -> Encoding:
    """A learned bias for each bucket and head (Raffel et al. 2020, §2.1).

    `bidirectional` None: unless the spec is causal. The parameter's name, "both_ways" or "causal", keeps the choice.
    """
    require_least(num_buckets=(num_buckets, 4), max_distance=(max_distance, num_buckets // 2 + 1))

    def init(key, spec):
        both = not spec.is_causal if bidirectional is None else bidirectional
        name = "both_ways" if both else "causal"
        return {name: 0.02 * jax.random.normal(key, (num_buckets, spec.heads))}

    def bias(params, query, query_positions, key_positions):
        del query
        ((name, table),) = params.items()
        asked = {"bidirectional": name == "both_ways", "num_buckets": num_buckets, "max_distance": max_distance}
        found = table[t5_bucket(_relative(query_positions, key_positions), **asked)]
        return jnp.moveaxis(found, -1, -3)

    return Encoding(init=init, bias=bias)


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
        scores_Qx2k = query @ params["keys"].T.astype(query.dtype) / math.sqrt(query.shape[-1])
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
        psi = lambda x: jnp.log(jnp.abs(params["c"] * x) + 1)  # noqa: E731
        distance = jnp.maximum(-_relative(query_positions, key_positions), 0).astype(jnp.float32)
        least = jnp.abs(params["threshold"] * threshold)
        scale = jnp.maximum(least, query_positions.astype(jnp.float32))[..., :, None]
        ratio = jnp.divide(*align_ranks(psi(distance), jnp.maximum(psi(scale), 1e-6)))
        inner = jnp.einsum("...qk,h->...qkh", ratio, params["hidden"])
        features = jax.nn.relu(jnp.add(*align_ranks(inner, params["hidden_bias"])))
        return jnp.moveaxis(features @ params["out"], -1, -3)

    return Encoding(init=init, bias=bias, kinds=("decoder",), is_shared=False)


def kerple(form: str) -> Encoding:
    """Of form "log" −r₁ ln(1 + r₂ |i − j|), else −r₁ |i − j|^r₂ with r₂ ≤ 2; each head learns its r₁, r₂ > 0.

    Chi et al. 2022, §3.3.
    """

    def init(key, spec):
        one, other = jax.random.split(key)
        draw = lambda key, top: jax.random.uniform(key, (spec.heads,), minval=0.1, maxval=top)  # noqa: E731
        return {"r1": draw(one, 2.0), "r2": draw(other, 1.0)}

    def bias(params, query, query_positions, key_positions):
        del query
        r1, r2 = (_at_least(1e-2, params[name])[:, None, None] for name in ("r1", "r2"))
        distance = _distance(query_positions, key_positions)
        r1, r2, distance = align_ranks(r1, r2, distance)
        if form == "log":
            return -r1 * jnp.log1p(r2 * distance)
        is_near = distance == 0  # a power of 0 has no gradient
        return jnp.where(is_near, 0.0, -r1 * jnp.where(is_near, 1.0, distance) ** jnp.minimum(r2, 2.0))

    return Encoding(init=init, bias=bias)


def _at_least(bound: float, parameter: Array) -> Array:
    """max(parameter, bound), with the gradient of the parameter itself, so that one below the bound can come back."""
    return parameter + jax.lax.stop_gradient(jnp.maximum(parameter, bound) - parameter)
