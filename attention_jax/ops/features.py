"""Feature maps φ, by which a score is a product: κ(q, k) = φ(q)ᵀφ(k) ≥ 0.

With them Σ_j κ(q, k_j) v_j = φ(q)ᵀ (Σ_j φ(k_j) v_jᵀ): attention in time that grows with the number of keys and not with
its square (`ops/linear.py`).
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from attention_jax.ops.normalization import EPSILON


def elu_features(x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """elu(x) + 1: x + 1 for x > 0, else eˣ (Katharopoulos et al. 2020, eq. 7)."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


def positive_features(x: Float[Array, "*batch d"], directions: Float[Array, "m d"]) -> Float[Array, "*batch m"]:
    """exp(w_iᵀx − ‖x‖²/2) / √m for the m rows w_i of `directions` (Choromanski et al. 2021, §2.3, lemma 1).

    Over directions that are standard normal, E[φ(q)ᵀφ(k)] = exp(qᵀk): the weights of softmax attention, before they are
    normalised, whose √d is had by dividing q and k by d^¼. The variance falls as 1/m. From ‖x‖ of about 13 on, features
    may all be too small for float32, and what is read of them is 0.
    """
    half = jnp.sum(jnp.square(x), axis=-1, keepdims=True) / 2
    return jnp.exp(x @ directions.T.astype(x.dtype) - half) / math.sqrt(len(directions))


def unit_features(x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """silu(x) / √(‖silu(x)‖² + ε), of length 1 in float32, for the delta rule (Yang et al. 2024, §3.3)."""
    active = jax.nn.silu(x.astype(jnp.float32))
    return active * jax.lax.rsqrt(jnp.sum(jnp.square(active), axis=-1, keepdims=True) + EPSILON)


def orthogonal_directions(key: Key[Array, ""], count: int, size: int) -> Float[Array, "{count} {size}"]:
    """Standard normal vectors, `size` after `size` of them at right angles (Choromanski et al. 2021, §2.4).

    Each alone is distributed as if all were independent, and products of features vary less.
    """
    of_blocks, of_norms = jax.random.split(key)
    blocks = jax.random.orthogonal(of_blocks, size, (math.ceil(count / size),))
    norms = jnp.linalg.norm(jax.random.normal(of_norms, (count, size)), axis=-1)
    return norms[:, None] * blocks.reshape(-1, size)[:count]
