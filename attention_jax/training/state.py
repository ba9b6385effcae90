"""What training carries from step to step, and what a checkpoint therefore holds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention_jax.ops.losses import Sums

Variables = dict[str, Any]
Metrics = dict[str, Sums]
METRICS = ("loss", "gradient_norm", "learning_rate")
IN_CHECKPOINTS = {"unlogged": "window"}  # a field's name in checkpoints, where it differs


class Best(NamedTuple):
    """The variables of the best evaluation so far, and their score (larger is better)."""

    score: Float[Array, ""]
    step: Int[Array, ""]
    variables: Variables


class TrainState(NamedTuple):
    """One member's state: step, every variable collection, the optimizer's moments, the best so far.

    `unlogged` holds the metrics summed since they were last logged, so that a resumed run logs what an
    unbroken one would. A state whose loss or gradient was not finite takes no more steps.
    """

    step: Int[Array, ""]
    variables: Variables
    moments: Any
    best: Best
    unlogged: Metrics
    is_finite: Bool[Array, ""]


def new_state(variables: Variables, moments: Any) -> TrainState:
    """The state before the first step."""
    step = jnp.zeros((), jnp.int32)
    # copies: the training loop donates its state, and one buffer cannot be given away twice
    best = Best(jnp.float32(-jnp.inf), step + 0, jax.tree.map(jnp.copy, variables))
    return TrainState(step, variables, moments, best, no_metrics(), jnp.array(True))


def no_metrics() -> Metrics:
    """The metrics of no step."""
    return {name: Sums(jnp.zeros(()), jnp.zeros(())) for name in METRICS}


def mean(checkpoints: Sequence[Variables]) -> Variables:
    """The mean of every variable over the checkpoints of one run (Vaswani et al. 2017, §6.1)."""

    def averaged(*leaves):
        total = sum(leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in leaves)
        return (total / len(leaves)).astype(leaves[0].dtype)

    return jax.tree.map(averaged, *checkpoints)


def _with_keys(state: TrainState) -> tuple[list[tuple[jax.tree_util.GetAttrKey, Any]], None]:
    names = (IN_CHECKPOINTS.get(field, field) for field in state._fields)
    return list(zip(map(jax.tree_util.GetAttrKey, names), state, strict=True)), None


jax.tree_util.register_pytree_with_keys(
    TrainState, _with_keys, lambda _, fields: TrainState(*fields), lambda state: (tuple(state), None)
)
