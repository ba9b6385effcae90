"""Adam with clipping and decoupled weight decay, every number of which may be traced."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from attention_jax.ops.schedules import SCHEDULES


def adam(b2: Array | float = 0.999) -> optax.GradientTransformation:
    """Kingma & Ba 2015, alg. 1, with β₁ = .9; its state does not depend on β₂, which may be traced."""
    return optax.scale_by_adam(b1=0.9, b2=b2, eps=1e-8)


def new_moments(params: Any) -> Any:
    """The optimizer's state before the first step, in float32 whatever the parameters are kept in."""
    return adam().init(_float32(params))


def update(
    gradients: Any, moments: Any, params: Any, step: Array, hyper: Mapping, schedule: str
) -> tuple[Any, Any, dict[str, Float[Array, ""]]]:
    """New parameters, new moments, and the gradient norm (before clipping) and learning rate used.

    θ ← θ − η_t (Adam(g · min(1, c / ‖g‖)) + λ θ) (Kingma & Ba 2015, alg. 1; Pascanu et al. 2013, alg. 1;
    Loshchilov & Hutter 2019, alg. 2). Weight decay λ acts on matrices, not on biases and gains.
    """
    gradients = _float32(gradients)
    norm = optax.tree.norm(gradients)
    scale = jnp.minimum(1, hyper["clip_norm"] / jnp.maximum(norm, 1e-12))
    direction, moments = adam(hyper["b2"]).update(jax.tree.map(lambda g: g * scale, gradients), moments)
    rate = SCHEDULES[schedule](step, hyper)

    def apply(param, change):
        decay = hyper["weight_decay"] * param if param.ndim > 1 else 0
        return (param - rate * (change + decay)).astype(param.dtype)

    return jax.tree.map(apply, params, direction), moments, {"gradient_norm": norm, "learning_rate": rate}


def _float32(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), tree)
