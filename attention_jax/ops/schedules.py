"""Learning-rate schedules: pure functions of the step and of scalars, which may be traced.

A schedule is `schedule(step, hyper)`. The mapping `hyper` holds `learning_rate` (the peak), `warmup_steps`,
`decay_steps` (from step 0 to the end of the decay) and `final_fraction` (of the peak).
"""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Step = Int[Array, ""] | int
Rate = Float[Array, ""]


def constant(step: Step, hyper: Mapping) -> Rate:
    """The peak, after a linear warm-up."""
    return hyper["learning_rate"] * _warmup(step, hyper)


def inverse_sqrt(step: Step, hyper: Mapping) -> Rate:
    """peak · min(t / w, √(w / t)) (Vaswani et al. 2017, eq. 3, by its peak), t = step + 1, w = warm-up."""
    warmup = jnp.maximum(hyper["warmup_steps"], 1)
    t = jnp.asarray(step, jnp.float32) + 1
    return hyper["learning_rate"] * jnp.minimum(t / warmup, jnp.sqrt(warmup / t))


def linear(step: Step, hyper: Mapping) -> Rate:
    """Warm-up, then a straight line to final_fraction · peak at `decay_steps`."""
    return _decayed(step, hyper, lambda progress: 1 - progress)


def cosine(step: Step, hyper: Mapping) -> Rate:
    """Warm-up, then half a cosine to final_fraction · peak (Loshchilov & Hutter 2017, eq. 5)."""
    return _decayed(step, hyper, lambda progress: (1 + jnp.cos(jnp.pi * progress)) / 2)


SCHEDULES: dict[str, Callable[[Step, Mapping], Rate]] = {
    "constant": constant,
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
}


DECAYING = ("linear", "cosine")  # schedules that end at `decay_steps`


def _warmup(step: Step, hyper: Mapping) -> Rate:
    return jnp.minimum((jnp.asarray(step, jnp.float32) + 1) / jnp.maximum(hyper["warmup_steps"], 1), 1)


def _decayed(step: Step, hyper: Mapping, shape: Callable) -> Rate:
    span = jnp.maximum(hyper["decay_steps"] - hyper["warmup_steps"], 1)
    progress = jnp.clip((jnp.asarray(step, jnp.float32) - hyper["warmup_steps"]) / span, 0, 1)
    floor = hyper["final_fraction"]
    return hyper["learning_rate"] * _warmup(step, hyper) * (floor + (1 - floor) * shape(progress))
