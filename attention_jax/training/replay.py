"""Training that says which operation of which layer made a loss or gradient that is not finite."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.errors import UserError
from attention_jax.training.loop import Trainer
from attention_jax.training.not_finite import origin_of
from attention_jax.training.state import TrainState
from attention_jax.training.step import gather, train_step


def watched(trainer: Trainer | None, seeds: Sequence[int]) -> Trainer:
    """A trainer of `seeds` that keeps its states before each call, and takes a failing step again.

    Its training raises UserError with the step and the origin of what is not finite. Raises UserError where there is
    no trainer.
    """
    if trainer is None:
        raise UserError("--debug_nans: this experiment trains nothing step by step.")
    population = trainer.population

    def advance(packed, tables, rows, count, hypers):
        before = jax.tree.map(jnp.copy, packed)
        after = population.advance(packed, tables, rows, count, hypers)
        was, now = population.look(before), population.look(after)
        for member in map(int, np.flatnonzero(was.goes_on & ~now.goes_on)):
            done = int(now.step[member] - was.step[member]) - 1
            state = population.unpack(population.advance(before, tables, rows, np.int32(done), hypers))[member]
            found = _explained(trainer, state, _batch(tables[member], rows[member], done), hypers[member])
            raise UserError(f"--debug_nans: seed {seeds[member]}, step {int(now.step[member])}: {found}.")
        return after

    return trainer._replace(population=population._replace(advance=advance))


def _explained(trainer: Trainer, state: TrainState, batch: Any, hyper: Any) -> str:
    """What of a step is not finite, and which operation made it so."""
    step = functools.partial(train_step, trainer.task.loss, trainer.rule, trainer.stepping)
    for name, what in (("loss", "the loss"), ("gradient_norm", "the gradient")):
        origin = origin_of(lambda *arguments, name=name: step(*arguments)[1][name].total, state, batch, hyper)
        if origin is not None:
            return f"{what} is not finite; the first {origin.what} is made by {origin}"
    return "taken again, an operation at a time, the step is finite: it fails only as one compiled program"


def _batch(table: Any, rows: np.ndarray | None, step: int) -> Any:
    """A step's batch, as `train_steps` takes it."""
    if rows is None:
        return jax.tree.map(lambda column: column[step], table)
    return jax.tree.map(lambda column: gather(column, jnp.asarray(rows[step])), table)
