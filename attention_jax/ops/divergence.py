"""How far one distribution is from another: total variation and Jensen–Shannon divergence over the last axis."""

import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float

Distribution = Float[Array, "*#batch n"]  # 0 or more, of sum 1
TINY = 1e-30  # below it a weight is 0 to a logarithm, so that gradients are finite


def total_variation(p: Distribution, q: Distribution) -> Float[Array, "*batch"]:
    """½ Σ |p − q|: the most by which the two differ on any event; from 0 to 1."""
    return jnp.sum(jnp.abs(p - q), axis=-1) / 2


def jensen_shannon(p: Distribution, q: Distribution) -> Float[Array, "*batch"]:
    """½ KL(p ‖ m) + ½ KL(q ‖ m) in nats with m = ½ (p + q) (Lin 1991): from 0 to ln 2."""
    middle = jnp.log(jnp.maximum((p + q) / 2, TINY))
    return jnp.sum(_entropic(p) - p * middle + _entropic(q) - q * middle, axis=-1) / 2


def _entropic(p: Distribution) -> Float[Array, "*batch n"]:
    """p ln p."""
    return xlogy(p, jnp.maximum(p, TINY))
