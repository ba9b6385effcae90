"""Adam with clipping and decoupled weight decay, every number of which may be traced; it acts in float32."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from attention_jax.ops.schedules import DECAYING as DECAYING  # with the schedules, for who checks a config
from attention_jax.ops.schedules import SCHEDULES


def adam(b2: Array | float = 0.999) -> optax.GradientTransformation:
    """Kingma & Ba 2015, alg. 1, with β₁ = .9; its state does not depend on β₂, which may be traced."""
    return optax.scale_by_adam(b1=0.9, b2=b2, eps=1e-8)


class WithMaster(NamedTuple):
    """Adam's moments, and a float32 copy of each parameter that is kept in less; None of one that is not.

    A change of less than a 256th of a parameter is lost in bfloat16: it is added to the copy, and the parameter is the
    copy rounded (Micikevicius et al. 2018, §3.1).
    """

    adam: Any
    master: Any


def new_moments(params: Any) -> Any:
    """The optimizer's state before the first step: Adam's moments in float32, `WithMaster` where that is needed."""
    exact = _float32(params)
    return _with_master(adam().init(exact), exact, params)


def update(
    gradients: Any, moments: Any, params: Any, step: Array, hyper: Mapping, schedule: str
) -> tuple[Any, Any, dict[str, Float[Array, ""]]]:
    """New parameters, new moments, and the gradient norm (before clipping) and learning rate used.

    θ ← θ − η_t (Adam(g · min(1, c / ‖g‖)) + λ θ) (Kingma & Ba 2015, alg. 1; Pascanu et al. 2013, alg. 1;
    Loshchilov & Hutter 2019, alg. 2). Weight decay λ acts on matrices, not on biases and gains.
    """
    moments, exact = _exact(moments, params)
    gradients = _float32(gradients)
    norm = optax.tree.norm(gradients)
    scale = jnp.minimum(1, hyper["clip_norm"] / jnp.maximum(norm, 1e-12))
    direction, moments = adam(hyper["b2"]).update(jax.tree.map(lambda g: g * scale, gradients), moments)
    rate = SCHEDULES[schedule](step, hyper)

    def apply(param, change):
        decay = hyper["weight_decay"] * param if param.ndim > 1 else 0
        return (param - rate * (change + decay)).astype(param.dtype)

    exact = jax.tree.map(apply, exact, direction)
    rounded = jax.tree.map(lambda one, param: one.astype(param.dtype), exact, params)
    return rounded, _with_master(moments, exact, params), {"gradient_norm": norm, "learning_rate": rate}


def _exact(moments: Any, params: Any) -> tuple[Any, Any]:
    """Adam's moments alone, and the parameters, of master copies where there are such."""
    if not isinstance(moments, WithMaster):
        return moments, params
    take = lambda held, param: param if held is None else held  # noqa: E731
    return moments.adam, jax.tree.map(take, moments.master, params, is_leaf=lambda leaf: leaf is None)


def _with_master(moments: Any, exact: Any, params: Any) -> Any:
    """The moments, beside what is exact of parameters that are not."""
    master = jax.tree.map(lambda one, param: None if one.dtype == param.dtype else one, exact, params)
    return WithMaster(moments, master) if jax.tree.leaves(master) else moments


def _float32(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), tree)
