"""The training step, and many of them inside one compiled call."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attention_jax.errors import UserError
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.losses import Sums
from attention_jax.ops.placing import over_rows
from attention_jax.training.optimizer import Rule, update
from attention_jax.training.state import Metrics, TrainState, Variables

Loss = Callable[[Variables, Any, Dropout, Mapping], tuple[Sums, Variables]]


class Stepping(NamedTuple):
    """The static part of a step that is neither its loss nor its optimizer, from `config.train`."""

    accumulate: int = 1  # micro-batches that a batch is cut into
    ema: float = 0.0  # the decay of the running mean of parameters; 0: there is none
    skip_nonfinite: int = 0  # how many steps in a row that are not finite end training, each left out; 0: the first


PLAIN = Stepping()


def stepping_of(train: Mapping[str, Any]) -> Stepping:
    """The stepping of `config.train`. Raises UserError for a value that cannot be used."""
    found = Stepping(**{name: train[name] for name in Stepping._fields})
    for name, holds, words in (
        ("accumulate", found.accumulate >= 1, "1 or more"),
        ("ema", 0 <= found.ema < 1, "0 or more and less than 1"),
        ("skip_nonfinite", found.skip_nonfinite >= 0, "0 or more"),
    ):
        if not holds:
            raise UserError(f"config.train.{name}={train[name]}: needs {words}.")
    return found


def train_step(
    loss: Loss, rule: Rule, stepping: Stepping, state: TrainState, batch: Any, hyper: Mapping
) -> tuple[TrainState, Metrics]:
    """One step: `loss(variables, batch, dropout, hyper) → (Sums, other collections)`, per counted item.

    The metrics of the step are returned, and added to the state's `unlogged` ones.
    """
    params = state.variables["params"]
    if stepping.ema and len(state.variables) > 1:
        raise UserError(
            f"config.train.ema={stepping.ema}: the mean of parameters has no moments for a batch norm. Set it 0, or "
            "choose another norm."
        )
    gradients, sums, changed = _summed(loss, stepping.accumulate, state, batch, hyper)
    gradients = jax.tree.map(lambda gradient: gradient / jnp.maximum(sums.count, 1), gradients)
    params, moments, scalars = update(gradients, state.moments, params, state.step, hyper, rule)
    fails = ~(jnp.isfinite(sums.total) & jnp.isfinite(scalars["gradient_norm"]))
    failed = jnp.where(fails, state.failed + 1, 0)
    metrics = {"loss": sums, **{name: Sums(value, jnp.ones(())) for name, value in scalars.items()}}
    new = state._replace(
        variables={**state.variables, **changed, "params": params},
        moments=moments,
        average=state.average and _averaged(state, params, stepping.ema),
    )
    if stepping.skip_nonfinite:
        new, metrics = jax.tree.map(functools.partial(jnp.where, fails), (state, _nothing(metrics)), (new, metrics))
    metrics["skipped"] = Sums(fails.astype(jnp.float32), jnp.ones(()))
    return new._replace(
        step=state.step + 1,
        unlogged=jax.tree.map(jnp.add, state.unlogged, metrics),
        failed=failed,
        goes_on=state.goes_on & (failed < max(stepping.skip_nonfinite, 1)),
    ), metrics


def passes(loss: Loss, state: TrainState, batch: Any, hyper: Mapping) -> Any:
    """The forward and backward pass of a step: the gradient of its loss, without what an optimizer makes of it."""
    return _summed(loss, 1, state, batch, hyper)[0]


def _summed(loss: Loss, parts: int, state: TrainState, batch: Any, hyper: Mapping) -> tuple[Any, Sums, Variables]:
    """Σ over a batch's items of the gradient (float32) and of the loss, and the collections that the loss changed.

    The batch is read in `parts` micro-batches, which add up: dropout is drawn by the number of a row in the batch.
    """
    params = state.variables["params"]
    others = {name: value for name, value in state.variables.items() if name != "params"}
    if parts > 1 and others:
        raise UserError(
            f"config.train.accumulate={parts}: a batch norm's moments are of a whole batch. Set it 1, or choose "
            "another norm."
        )
    dropout = Dropout(jax.random.fold_in(hyper["key"], state.step), hyper["dropout"])

    def total(params, rows, first):
        sums, changed = loss({"params": params, **others}, rows, dropout._replace(row=first), hyper)
        return sums.total, (sums, changed)

    def of_rows(rows, first):
        gradients, found = jax.grad(total, has_aux=True)(params, rows, first)
        exact = lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))  # noqa: E731
        return jax.tree.map(exact, gradients), *found

    if parts == 1:
        return of_rows(over_rows(batch), 0)
    micro = jax.tree.map(lambda rows: rows.reshape(parts, -1, *rows.shape[1:]), batch)
    size = len(jax.tree.leaves(micro)[0][0])

    def add(carry, part):
        rows, index = part
        gradients, sums, _ = of_rows(over_rows(rows), index * size)
        return jax.tree.map(jnp.add, carry, (gradients, sums)), None

    shapes = jax.eval_shape(of_rows, jax.tree.map(lambda rows: rows[0], micro), 0)[:2]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    gradients, sums = jax.lax.scan(add, zeros, (micro, jnp.arange(parts)))[0]
    return gradients, sums, {}


def _averaged(state: TrainState, params: Any, decay: float) -> Any:
    """The running mean after a step: decay · mean + (1 − decay) · θ, the decay being at most (1 + t) / (10 + t).

    The bound lets the mean forget the first parameters (Abadi et al. 2016, tf.train.ExponentialMovingAverage).
    """
    now = jnp.minimum(decay, (1 + state.step) / (10 + state.step))
    return jax.tree.map(lambda mean, param: now * mean + (1 - now) * param, state.average, params)


def _nothing(metrics: Metrics) -> Metrics:
    return jax.tree.map(jnp.zeros_like, metrics)


def train_steps(
    loss: Loss,
    rule: Rule,
    stepping: Stepping,
    state: TrainState,
    table: Any,
    rows: Int[Array, "steps batch"] | None,
    count: Int[Array, ""],
    hyper: Mapping,
) -> TrainState:
    """`count` steps in one compiled loop, over batches gathered from `table`'s rows.

    Without `rows` the table has the batches themselves, `[steps, batch, …]`. The loop stops where training does not go
    on.
    """

    def advance(carry):
        i, state = carry
        take = (lambda column: column[i]) if rows is None else (lambda column: gather(column, rows[i]))
        return i + 1, train_step(loss, rule, stepping, state, jax.tree.map(take, table), hyper)[0]

    start = (jnp.zeros((), jnp.int32), state)
    return jax.lax.while_loop(lambda carry: (carry[0] < count) & carry[1].goes_on, advance, start)[1]


def gather(column: Array, index: Int[Array, " batch"]) -> Array:
    """The rows of a column; a negative index gives a row of zeros, which is padding."""
    return jnp.where((index >= 0)[:, None], column[jnp.maximum(index, 0)], 0)
