"""The training loop: calls of many steps, and between them logging, evaluation, checkpoints."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.errors import UserError
from attention_jax.training.checkpoints import Checkpoints
from attention_jax.training.optimizer import new_moments
from attention_jax.training.state import Best, TrainState, Variables, empty_window, new_state
from attention_jax.training.step import Loss, train_steps


class Task(NamedTuple):
    """What the loop trains: an experiment's model, loss, data and evaluation."""

    init: Callable[[jax.Array], Variables]  # key → variables
    loss: Loss
    call: Callable[[int, int, int], tuple[Any, np.ndarray]]  # (seed, step, stop) → table, rows [steps, batch]
    steps_per_epoch: int
    evaluate: Callable[[Variables], dict[str, float]]


class Plan(NamedTuple):
    """How long to train, and what happens when; a key that is not here raises TypeError."""

    steps: int
    steps_per_call: int
    log_every: int
    evaluate_every: int
    checkpoint_every: int
    keep_last: int
    best_by: str
    schedule: str

    def next_stop(self, step: int, steps_per_epoch: int) -> int:
        """The next step after which something is due, or an epoch ends."""
        periods = (self.log_every, self.evaluate_every, self.checkpoint_every, steps_per_epoch)
        return min(self.steps, *((step // period + 1) * period for period in periods))

    def is_due(self, step: int, period: int) -> bool:
        return step % period == 0 or step == self.steps


class Hooks(NamedTuple):
    """How the loop speaks to the run it belongs to."""

    log: Callable[[int, int, dict[str, float]], None]  # step, seed, values
    advance: Callable[[int, float, float], None]  # steps done, their items, the mean loss since it was last logged
    is_interrupted: Callable[[], bool]


class NotFinite(Exception):
    """A loss or gradient was NaN or infinite at `step` of the run with `seed`."""

    def __init__(self, seed: int, step: int):
        super().__init__(f"seed {seed}: the loss or its gradient is not finite at step {step}")
        self.seed, self.step = seed, step


def initial_states(
    init: Callable[[jax.Array], Variables], seeds: Sequence[int], start_from: Variables | None = None
) -> list[TrainState]:
    """One member a seed, as it is before the first step; `start_from` replaces the fresh variables."""

    def create(key):
        variables = init(key) if start_from is None else start_from
        return new_state(variables, new_moments(variables["params"]))

    created = jax.jit(create)
    return [created(jax.random.key(seed)) for seed in seeds]


def fit(
    task: Task, plan: Plan, hypers: Sequence[Mapping], states: list[TrainState], checkpoints: Checkpoints, hooks: Hooks
) -> list[TrainState]:
    """Train every member from where it is to `plan.steps`; returns early where interrupted, all saved.

    Raises NotFinite at the first step that is not; the last good checkpoint stays.
    """
    run = jax.jit(functools.partial(train_steps, task.loss, plan.schedule), donate_argnums=0)
    step = int(states[0].step)
    while step < plan.steps and not hooks.is_interrupted():
        stop, loss = plan.next_stop(step, task.steps_per_epoch), jax.device_get(states[0].window["loss"])
        for member, hyper in enumerate(hypers):
            states[member] = _call(run, task, plan, states[member], step, stop, hyper)
        step, before = int(states[0].step), step
        seen, loss = loss.count, jax.device_get(states[0].window["loss"])
        hooks.advance(step - before, len(states) * float(loss.count - seen), float(loss.mean()))
        if step == stop:
            states = [
                _log(task, plan, state, hyper["seed"], hooks) for state, hyper in zip(states, hypers, strict=True)
            ]
            if plan.is_due(step, plan.checkpoint_every):
                checkpoints.save(step, states)
    checkpoints.save(step, states)
    return states


def _call(run, task: Task, plan: Plan, state: TrainState, step: int, stop: int, hyper: Mapping) -> TrainState:
    """One compiled call for one member, cut off at `stop`; its rows padded to `steps_per_call`."""
    table, rows = task.call(hyper["seed"], step, stop)
    padded = np.zeros((plan.steps_per_call, rows.shape[1]), np.int32)
    padded[: len(rows)] = rows
    traced = {name: value for name, value in hyper.items() if name != "seed"}
    state, is_finite = run(state, table, padded, len(rows), traced)
    if not is_finite:
        raise NotFinite(hyper["seed"], int(state.step))
    return state


def _log(task: Task, plan: Plan, state: TrainState, seed: int, hooks: Hooks) -> TrainState:
    """Log a member's metrics since the last time and, where due, its evaluation; its window is empty again."""
    step, window = int(state.step), jax.device_get(state.window)
    values = {f"train.{name}": float(sums.mean()) for name, sums in window.items()}
    values["train.tokens"] = float(window["loss"].count)
    if plan.is_due(step, plan.evaluate_every):
        values |= task.evaluate(state.variables)
        state = state._replace(best=_better(state, values, plan.best_by))
    hooks.log(step, seed, values)
    return state._replace(window=empty_window())


def _better(state: TrainState, values: dict[str, float], best_by: str) -> Best:
    if best_by not in values:
        raise UserError(f"config.train.best_by={best_by!r} is not measured here: there is {', '.join(values)}.")
    score = values[best_by] * (-1 if best_by.endswith("loss") else 1)
    if score <= float(state.best.score):
        return state.best
    return Best(jnp.float32(score), jnp.copy(state.step), jax.tree.map(jnp.copy, state.variables))
