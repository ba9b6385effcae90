"""Multi-head latent attention (DeepSeek-AI 2024, §2.1): all heads' keys and values are made of one vector a token.

Head h attends by softmax((q_hᵀk_h + q_{R,h}ᵀk_R) / √(F + R)), with k_h = W_h c and v_h = U_h c of the latent c.
Positions turn q_R and k_R alone, so that W_h may go over to the query: qᵀW_h c = (W_hᵀq)ᵀc, and latents are pooled
before U_h. Then c and k_R are all that is kept of a token, and no key or value of a head is made.

Here are the queries, keys and values of both ways, for `attend` with the score `scaled_dot`; W and U are
`[rank, heads, F]`.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.placing import over_features


class Latents(NamedTuple):
    """What is kept of each token, for all heads: the latent c, and the key k_R, which positions have turned."""

    latent: Float[Array, "*batch s rank"]
    turned: Float[Array, "*batch s rotary"]


class Read(NamedTuple):
    """What `attend` takes; absorbed, all heads have the same keys and values, on an axis of size 1."""

    query: Float[Array, "*batch heads t d"]
    key: Float[Array, "*batch #heads s d"]
    value: Float[Array, "*batch #heads s v"]


def expanded(
    query: Float[Array, "*batch heads t f"],
    turned: Float[Array, "*batch heads t rotary"],
    memory: Latents,
    w_key: Float[Array, "rank heads f"],
    w_value: Float[Array, "rank heads f"],
) -> Read:
    """Every head's own keys and values: q = [q_h; q_{R,h}], k = [W_h c; k_R], v = U_h c."""
    key, value = (over_features(of_heads(memory.latent[..., None, :, :], w), axis=-3) for w in (w_key, w_value))
    of_all = jnp.broadcast_to(memory.turned[..., None, :, :], (*key.shape[:-1], memory.turned.shape[-1]))
    return Read(jnp.concatenate([query, turned], axis=-1), jnp.concatenate([key, of_all], axis=-1), value)


def absorbed(
    query: Float[Array, "*batch heads t f"],
    turned: Float[Array, "*batch heads t rotary"],
    memory: Latents,
    w_key: Float[Array, "rank heads f"],
) -> Read:
    """The latents as all heads' keys and values: q = [W_hᵀ q_h; q_{R,h}], scaled as above, k = [c; k_R], v = c.

    What is pooled of them are latents, of which `of_heads` makes values.
    """
    of_latents = jnp.einsum("...ntf,rnf->...ntr", query, w_key)
    of_text = jnp.concatenate(memory, axis=-1)[..., None, :, :]
    scale = math.sqrt(of_text.shape[-1] / (query.shape[-1] + turned.shape[-1]))
    both = scale * jnp.concatenate([of_latents, turned], axis=-1)
    return Read(both, of_text, memory.latent[..., None, :, :])


def of_heads(
    latent: Float[Array, "*batch #heads t rank"], matrix: Float[Array, "rank heads f"]
) -> Float[Array, "*batch heads t f"]:
    """W_h c of each head's latents, or of those that all have."""
    if latent.shape[-3] == 1:
        return jnp.einsum("...tr,rnf->...ntf", latent[..., 0, :, :], matrix)
    return jnp.einsum("...ntr,rnf->...ntf", latent, matrix)
