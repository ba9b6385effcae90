"""What training carries from step to step, and what a checkpoint therefore holds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention_jax.ops.losses import Sums

Variables = dict[str, Any]
Metrics = dict[str, Sums]
METRICS = ("loss", "gradient_norm", "update_norm", "learning_rate", "skipped")


class Best(NamedTuple):
    """The score (larger is better; −∞: none yet) and step of the best evaluation; its variables are on the disk."""

    score: Float[Array, ""]
    step: Int[Array, ""]


class TrainState(NamedTuple):
    """One member's state: every variable collection, the optimizer's moments, and what else a resumed run needs.

    `average` is the running mean of the parameters, None where there is none. `unlogged` holds the metrics summed since
    they were last logged, so that a resumed run logs what an unbroken one would. `failed` counts the steps in a row
    whose loss or gradient was not finite; once there are too many, `goes_on` is False and no more steps are taken.
    """

    step: Int[Array, ""]
    seed: Int[Array, ""]
    variables: Variables
    moments: Any
    average: Any
    best: Best
    unlogged: Metrics
    failed: Int[Array, ""]
    goes_on: Bool[Array, ""]


def new_state(variables: Variables, moments: Any, seed: int | Array = 0, *, has_average: bool = False) -> TrainState:
    """The state before the first step."""
    zero = jnp.zeros((), jnp.int32)
    # copies: the training loop donates its state, and one buffer cannot be given away twice
    average = jax.tree.map(_exact_copy, variables["params"]) if has_average else None
    return TrainState(
        step=zero,
        seed=jnp.asarray(seed, jnp.int32),
        variables=variables,
        moments=moments,
        average=average,
        best=Best(jnp.float32(-jnp.inf), zero + 0),
        unlogged=no_metrics(),
        failed=zero + 0,
        goes_on=jnp.array(True),
    )


def _exact_copy(leaf: Array) -> Array:
    return jnp.array(leaf, jnp.promote_types(leaf.dtype, jnp.float32), copy=True)


def averaged_variables(state: TrainState) -> Variables:
    """The variables with the running mean in place of the parameters."""
    rounded = jax.tree.map(lambda mean, param: mean.astype(param.dtype), state.average, state.variables["params"])
    return {**state.variables, "params": rounded}


def no_metrics() -> Metrics:
    """The metrics of no step."""
    return {name: Sums(jnp.zeros(()), jnp.zeros(())) for name in METRICS}


def mean(checkpoints: Sequence[Variables]) -> Variables:
    """The mean of every variable over the checkpoints of one run (Vaswani et al. 2017, §6.1)."""

    def averaged(*leaves):
        total = sum(leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in leaves)
        return (total / len(leaves)).astype(leaves[0].dtype)

    return jax.tree.map(averaged, *checkpoints)
