"""Local attention: the centre of its window, and how weights fall off from there (its mask is `masking.near_mask`)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.scoring import dot
from attention_jax.ops.shapes import align_ranks, require_shape


def predicted_centre(
    query: Float[Array, "*batch q d"],
    lengths: Int[Array, "*#batch"],
    w_p: Float[Array, "d h"],
    v_p: Float[Array, " h"],
) -> Float[Array, "*batch q"]:
    """p = S σ(v_pᵀ tanh(W_p q)), a position among the first S = `lengths` keys (Luong et al. 2015, eq. 9)."""
    require_shape("w_p", w_p, (query.shape[-1], v_p.shape[-1]), f"query is {query.shape}, v_p {v_p.shape}")
    fraction = jax.nn.sigmoid(dot(jnp.tanh(dot(query, w_p.T)), v_p[None, :]))[..., 0]
    return jnp.multiply(*align_ranks(fraction, lengths[..., None]))


def gaussian_falloff(
    width: float, centres: Float[Array, "*batch q"], positions: Float[Array, "*#batch k"]
) -> Float[Array, "*batch q k"]:
    """exp(−(s − p)² / 2σ²), σ = width / 2, for a key at position s and a centre p (Luong et al. 2015, eq. 10).

    It is the `falloff` of a `Relative`: the weights are not normalised again, so that the gradient reaches p.
    """
    distance = jnp.subtract(*align_ranks(positions[..., None, :], centres[..., :, None]))
    return jnp.exp(-jnp.square(distance) / (2 * (width / 2) ** 2))
