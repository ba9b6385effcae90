"""The training loop: calls of many steps, and between them logging, evaluation, checkpoints."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.errors import UserError
from attention_jax.training.checkpoints import Checkpoints
from attention_jax.training.optimizer import Rule, new_moments
from attention_jax.training.population import POPULATIONS, Population
from attention_jax.training.state import Best, TrainState, Variables, new_state, no_metrics
from attention_jax.training.step import Loss, train_steps


class Task(NamedTuple):
    """What the loop trains: an experiment's model, loss, data and evaluation."""

    init: Callable[[jax.Array], Variables]  # key → variables
    loss: Loss
    batches: Callable[[int, int, int], tuple[Any, np.ndarray]]  # (seed, step, stop) → table, rows [steps, batch]
    steps_per_epoch: int
    evaluate: Callable[[Variables], dict[str, float]]
    is_table_shared: bool = True  # whether a step's table is the same for every seed
    vocabulary: str = ""  # identifies the vocabulary that variables are trained with


class Timetable(NamedTuple):
    """How long to train, and what happens when: `config.train`, and how high a value of `best_by` is."""

    steps: int
    steps_per_call: int
    log_every: int
    evaluate_every: int
    checkpoint_every: int
    keep_last: int
    best_by: str
    height: Callable[[float], float]  # a value of `best_by` so that more is better; −∞ where it is not finite

    def next_stop(self, step: int, steps_per_epoch: int) -> int:
        """The next step after which something is due, or an epoch ends."""
        periods = (self.log_every, self.evaluate_every, self.checkpoint_every, steps_per_epoch)
        return min(self.steps, *((step // period + 1) * period for period in periods))

    def is_due(self, step: int, period: int) -> bool:
        return is_due(step, period, self.steps)


def is_due(step: int, period: int, steps: int) -> bool:
    """Whether something that is due once a period, and at the end, is due after this step."""
    return step % period == 0 or step == steps


class Hooks(NamedTuple):
    """How the loop speaks to the run or sweep it belongs to; a member is named by its index."""

    log: Callable[[int, int, dict[str, float]], None]  # step, member, values
    advance: Callable[[int, float, float], None]  # steps done, all their items, the mean loss since it was last logged
    is_interrupted: Callable[[], bool]
    on_not_finite: Callable[[int, int], None]  # member, step: its loss or gradient is not; it trains no more


class NotFinite(Exception):
    """A loss or gradient was NaN or infinite at `step` of the run with `seed`."""

    def __init__(self, seed: int, step: int):
        super().__init__(f"seed {seed}: the loss or its gradient is not finite at step {step}")
        self.seed, self.step = seed, step


class Trainer(NamedTuple):
    """A task, its timetable and its optimizer with their compiled programs, which any number of members share."""

    task: Task
    timetable: Timetable
    rule: Rule
    create: Callable[[jax.Array, Variables | None], TrainState]  # key, variables to start from instead → state
    population: Population

    def abstract(self, count: int) -> list[TrainState]:
        """The shapes of `count` members' states; see `abstract_states`."""
        return abstract_states(self.task.init, self.rule.optimizer, count)


def trainer(task: Task, timetable: Timetable, rule: Rule, how: str = "loop") -> Trainer:
    """What trains `task`; `how` is a key of `POPULATIONS`."""

    def create(key, start_from):
        variables = task.init(key) if start_from is None else start_from
        return new_state(variables, new_moments(variables["params"], rule.optimizer))

    steps = functools.partial(train_steps, task.loss, rule)
    return Trainer(task, timetable, rule, jax.jit(create), POPULATIONS[how](steps, task.is_table_shared))


def abstract_states(init: Callable[[jax.Array], Variables], optimizer: str, count: int) -> list[TrainState]:
    """The shapes of `count` states of an optimizer's runs, on the first device."""

    def create(key):
        variables = init(key)
        return new_state(variables, new_moments(variables["params"], optimizer))

    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    state = jax.eval_shape(create, jax.random.key(0))
    placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), state)
    return [placed] * count


def fit(
    trainer: Trainer,
    hypers: Sequence[Mapping],
    states: list[TrainState],
    checkpoints: Checkpoints,
    hooks: Hooks,
    until: int | None = None,
) -> list[TrainState]:
    """Train every member to step `until` (None: `timetable.steps`), and save all; ends early where interrupted.

    A member whose loss or gradient is not finite takes no more steps. Once no member takes any, training ends without
    another checkpoint.
    """
    task, timetable = trainer.task, trainer.timetable
    step, last = max(int(state.step) for state in states), timetable.steps if until is None else until
    pace = _Pace()
    while step < last and not hooks.is_interrupted():
        stop = min(last, timetable.next_stop(step, task.steps_per_epoch))
        states, step = _train_to(trainer, hypers, states, step, stop, hooks, pace)
        if not any(state.is_finite for state in states):
            return states
        if step == stop:
            timed, pace = pace.values(), _Pace()
            states = [_log(trainer, state, step, member, hooks, timed) for member, state in enumerate(states)]
            if timetable.is_due(step, timetable.checkpoint_every):
                checkpoints.save(step, states)
    checkpoints.save(step, states)
    return states


@dataclasses.dataclass
class _Pace:
    """Wall time of a member's steps since they were last logged; calls that compiled are left out."""

    seconds: float = 0.0
    steps: int = 0

    def values(self) -> dict[str, float]:
        """The mean of a step, where one was timed."""
        return {"train.step_seconds": self.seconds / self.steps} if self.steps else {}


def _train_to(
    trainer: Trainer,
    hypers: Sequence[Mapping],
    states: list[TrainState],
    step: int,
    stop: int,
    hooks: Hooks,
    pace: _Pace,
) -> tuple[list[TrainState], int]:
    """Compiled calls up to `stop`, or until interrupted."""
    task, population = trainer.task, trainer.population
    packed = population.pack(states)
    traced = [{name: value for name, value in hyper.items() if name != "seed"} for hyper in hypers]
    seen = population.look(packed)
    while step < stop and not hooks.is_interrupted():
        started, compiled = time.perf_counter(), population.compiled()
        batches = [task.batches(hyper["seed"], step, stop) for hyper in hypers]
        count = len(batches[0][1])
        tables = [table for table, _ in batches]
        rows = [_padded(rows, trainer.timetable.steps_per_call) for _, rows in batches]
        packed = population.advance(packed, tables, rows, count, traced)
        before, step, seen = seen, step + count, population.look(packed)
        if population.compiled() == compiled:
            pace.seconds += (time.perf_counter() - started) / len(hypers)
            pace.steps += count
        for member in np.flatnonzero(before.is_finite & ~seen.is_finite):
            hooks.on_not_finite(int(member), int(seen.step[member]))
        goes_on = seen.is_finite
        items = seen.items[goes_on].sum()
        hooks.advance(
            count, float(items - before.items[goes_on].sum()), float(seen.loss[goes_on].sum() / max(items, 1))
        )
    return population.unpack(packed), step


def _padded(rows: np.ndarray, steps_per_call: int) -> np.ndarray:
    padded = np.zeros((steps_per_call, rows.shape[1]), np.int32)
    padded[: len(rows)] = rows
    return padded


def _log(
    trainer: Trainer, state: TrainState, step: int, member: int, hooks: Hooks, timed: Mapping[str, float]
) -> TrainState:
    """Log a member's unlogged metrics and, where due, its evaluation; the state then has no unlogged ones."""
    if not state.is_finite:
        return state
    task, timetable, metrics = trainer.task, trainer.timetable, jax.device_get(state.unlogged)
    values = {f"train.{name}": float(sums.mean()) for name, sums in metrics.items()}
    values |= {"train.tokens": float(metrics["loss"].count), **timed}
    if timetable.is_due(step, timetable.evaluate_every):
        values |= task.evaluate(state.variables)
        state = state._replace(best=_better(state, values, timetable))
    hooks.log(step, member, values)
    return state._replace(unlogged=no_metrics())


def _better(state: TrainState, values: dict[str, float], timetable: Timetable) -> Best:
    if timetable.best_by not in values:
        raise UserError(
            f"config.train.best_by={timetable.best_by!r} is not measured here: choose one of {', '.join(values)}."
        )
    score = jnp.float32(timetable.height(values[timetable.best_by]))
    if not score > state.best.score:
        return state.best
    return Best(score, jnp.copy(state.step), jax.tree.map(jnp.copy, state.variables))
