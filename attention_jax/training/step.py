"""The training step, and many of them inside one compiled call."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attention_jax.ops.dropout import Dropout
from attention_jax.ops.losses import Sums
from attention_jax.training.optimizer import Rule, update
from attention_jax.training.state import Metrics, TrainState, Variables

Loss = Callable[[Variables, Any, Dropout, Mapping], tuple[Sums, Variables]]


def train_step(loss: Loss, rule: Rule, state: TrainState, batch: Any, hyper: Mapping) -> tuple[TrainState, Metrics]:
    """One step: `loss(variables, batch, dropout, hyper) → (Sums, other collections)`, per counted item.

    The metrics of the step are returned, and added to the state's `unlogged` ones.
    """
    params = state.variables["params"]
    others = {name: value for name, value in state.variables.items() if name != "params"}
    dropout = Dropout(jax.random.fold_in(hyper["key"], state.step), hyper["dropout"])

    def mean_loss(params):
        sums, changed = loss({"params": params, **others}, batch, dropout, hyper)
        return sums.mean(), (sums, changed)

    gradients, (sums, changed) = jax.grad(mean_loss, has_aux=True)(params)
    params, moments, scalars = update(gradients, state.moments, params, state.step, hyper, rule)
    metrics = {"loss": sums, **{name: Sums(value, jnp.ones(())) for name, value in scalars.items()}}
    is_finite = state.is_finite & jnp.isfinite(sums.total) & jnp.isfinite(scalars["gradient_norm"])
    return TrainState(
        state.step + 1,
        {"params": params, **others, **changed},
        moments,
        state.best,
        jax.tree.map(jnp.add, state.unlogged, metrics),
        is_finite,
    ), metrics


def train_steps(
    loss: Loss,
    rule: Rule,
    state: TrainState,
    table: Any,
    rows: Int[Array, "steps batch"],
    count: Int[Array, ""],
    hyper: Mapping,
) -> TrainState:
    """`count` steps over batches gathered from `table`'s rows, in one compiled loop.

    The loop stops after the first step whose loss or gradient is not finite.
    """

    rows = jnp.asarray(rows)

    def advance(carry):
        i, state = carry
        batch = jax.tree.map(lambda column: gather(column, rows[i]), table)
        return i + 1, train_step(loss, rule, state, batch, hyper)[0]

    start = (jnp.zeros((), jnp.int32), state)
    return jax.lax.while_loop(lambda carry: (carry[0] < count) & carry[1].is_finite, advance, start)[1]


def gather(column: Array, index: Int[Array, " batch"]) -> Array:
    """The rows of a column; a negative index gives a row of zeros, which is padding."""
    return jnp.where((index >= 0)[:, None], column[jnp.maximum(index, 0)], 0)
