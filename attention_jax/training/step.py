"""The training step, and many of them inside one compiled call."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from attention_jax.ops.dropout import Dropout
from attention_jax.ops.losses import Sums
from attention_jax.training.optimizer import update
from attention_jax.training.state import Metrics, TrainState, Variables

Loss = Callable[[Variables, Any, Dropout, Mapping], tuple[Sums, Variables]]


def train_step(loss: Loss, schedule: str, state: TrainState, batch: Any, hyper: Mapping) -> tuple[TrainState, Metrics]:
    """One step: `loss(variables, batch, dropout, hyper) → (Sums, other collections)`, per counted item.

    The metrics of the step are returned, and added to the state's window.
    """
    params = state.variables["params"]
    others = {name: value for name, value in state.variables.items() if name != "params"}
    dropout = Dropout(jax.random.fold_in(hyper["key"], state.step), hyper["dropout"])

    def mean_loss(params):
        sums, changed = loss({"params": params, **others}, batch, dropout, hyper)
        return sums.mean(), (sums, changed)

    gradients, (sums, changed) = jax.grad(mean_loss, has_aux=True)(params)
    params, moments, scalars = update(gradients, state.moments, params, state.step, hyper, schedule)
    metrics = {"loss": sums, **{name: Sums(value, jnp.ones(())) for name, value in scalars.items()}}
    window = jax.tree.map(jnp.add, state.window, metrics)
    return TrainState(state.step + 1, {"params": params, **others, **changed}, moments, state.best, window), metrics


def train_steps(
    loss: Loss,
    schedule: str,
    state: TrainState,
    table: Any,
    rows: Int[Array, "steps batch"],
    count: Int[Array, ""],
    hyper: Mapping,
) -> tuple[TrainState, Bool[Array, ""]]:
    """`count` steps over batches gathered from `table`'s rows, in one compiled loop.

    Also returns whether every loss and gradient was finite; the loop stops after the first that is not.
    """

    rows = jnp.asarray(rows)

    def advance(carry):
        i, state, _ = carry
        batch = jax.tree.map(lambda column: _gather(column, rows[i]), table)
        state, metrics = train_step(loss, schedule, state, batch, hyper)
        is_finite = jnp.isfinite(metrics["loss"].total) & jnp.isfinite(metrics["gradient_norm"].total)
        return i + 1, state, is_finite

    start = (jnp.zeros((), jnp.int32), state, jnp.array(True))
    _, state, is_finite = jax.lax.while_loop(lambda carry: (carry[0] < count) & carry[2], advance, start)
    return state, is_finite


def _gather(column: Array, index: Int[Array, " batch"]) -> Array:
    """The rows of a column; a negative index gives a row of zeros, which is padding."""
    return jnp.where((index >= 0)[:, None], column[jnp.maximum(index, 0)], 0)
