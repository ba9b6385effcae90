"""The training loop: calls of many steps, and between them logging, evaluation, checkpoints."""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from attention_jax import hosts, stopping
from attention_jax.errors import UserError
from attention_jax.stopping import Interrupted
from attention_jax.training.blueprint import Blueprint
from attention_jax.training.checkpoints import Checkpoints
from attention_jax.training.clock import Clock
from attention_jax.training.compiling import Inspect, Rehearsals, unseen
from attention_jax.training.feeding import Batches, Feed, require_same_rows, shapes_of_step
from attention_jax.training.optimizer import Rule
from attention_jax.training.pace import Pace
from attention_jax.training.parametrization import Lines
from attention_jax.training.peaks import peak_of_all
from attention_jax.training.placement import BY_SIZE, MESH, Placement, mesh_of_state, place, whole
from attention_jax.training.population import POPULATIONS, Population
from attention_jax.training.state import Best, TrainState, Variables, averaged_variables, no_metrics
from attention_jax.training.step import PLAIN, Loss, Stepping, train_steps

AVERAGED = "ema."  # opens the names of metrics of the running mean of parameters
CHECK_ROWS = 1000  # steps, after which hosts compare the rows that they are about to read
WHOLE = PartitionSpec()


class Task(NamedTuple):
    """What the loop trains: an experiment's model, loss, data and evaluation."""

    init: Callable[[jax.Array], Variables]  # key → variables
    loss: Loss
    batches: Callable[[int, int, int], Batches]  # (seed, step, stop) → those of one call
    steps_per_epoch: int
    evaluate: Callable[[Variables], dict[str, float]]
    vocabulary: str = ""  # identifies the vocabulary that variables are trained with
    placement: Placement = BY_SIZE
    lines: Lines = ()  # of a parametrization
    flops: Callable[[Any], float] | None = None  # the shapes of a step's batch → the model's FLOPs
    ahead: Callable[[int, int], Sequence[Batches]] | None = None  # (step, stop) → one for each shape, as first needed
    rehearsed: Callable[[Variables], Iterable[tuple]] | None = None  # shapes of variables → (function, its arguments)
    inspect: Inspect = unseen  # raises UserError where a compiled program is not what it must be


class Timetable(NamedTuple):
    """How long to train, and what happens when: `config.train`, and how high a value of `best_by` is."""

    steps: int
    steps_per_call: int
    log_every: int
    evaluate_every: int
    checkpoint_every: int
    checkpoint_minutes: int
    keep_last: int
    best_by: str
    height: Callable[[float], float]  # a value of `best_by` so that more is better; −∞ where it is not finite

    def next_stop(self, step: int, steps_per_epoch: int) -> int:
        """The next step after which something is due, or an epoch ends."""
        return min(self.steps, *((step // period + 1) * period for period in self._periods(steps_per_epoch)))

    def is_stop(self, step: int, steps_per_epoch: int) -> bool:
        """Whether something is due after this step, or an epoch ends."""
        return step == self.steps or any(step % period == 0 for period in self._periods(steps_per_epoch))

    def is_due(self, step: int, period: int) -> bool:
        return is_due(step, period, self.steps)

    def _periods(self, steps_per_epoch: int) -> tuple[int, ...]:
        return self.log_every, self.evaluate_every, self.checkpoint_every, steps_per_epoch


def is_due(step: int, period: int, steps: int) -> bool:
    """Whether something that is due once a period, and at the end, is due after this step."""
    return step % period == 0 or step == steps


class Hooks(NamedTuple):
    """How the loop speaks to the run or sweep it belongs to; a member is named by its index."""

    log: Callable[[int, int, dict[str, float]], None]  # step, member, values
    advance: Callable[[int, float, float], None]  # steps done, all their items, the mean loss since it was last logged
    on_not_finite: Callable[[int, int], None]  # member, step: its loss or gradient is not; it trains no more
    clock: Clock


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
    stepping: Stepping
    population: Population
    feed: Feed
    rehearsals: Rehearsals  # of evaluations
    counted: dict[tuple, float]  # the FLOPs of a step, by the shapes of its batch

    def flops_of(self, table: Any, rows: Any) -> float:
        """The model's FLOPs of a step on batches of these shapes; 0 where they are not known or of no use."""
        if self.task.flops is None or peak_of_all() is None:
            return 0.0
        batch = shapes_of_step(table, rows)
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        if shapes not in self.counted:
            self.counted[shapes] = self.task.flops(batch)
        return self.counted[shapes]

    @property
    def blueprint(self) -> Blueprint:
        """What members' states are made from."""
        return Blueprint(self.task.init, self.rule.optimizer, self.task.placement, bool(self.stepping.ema))

    def create(self, seeds: Sequence[int], start_from: Variables | None = None) -> list[TrainState]:
        """Fresh states of members with these seeds, or states that start from other variables."""
        return self.blueprint.create(seeds, self.population.mesh(len(seeds)), start_from)

    def abstract(self, count: int) -> list[TrainState]:
        """The shapes of `count` members' states, and where they lie."""
        return [self.blueprint.abstract(self.population.mesh(count))] * count

    @contextlib.contextmanager
    def compiling(self, hypers: Sequence[Mapping], step: int, stop: int) -> Iterator[None]:
        """Meanwhile the programs of the steps from `step` to `stop`, then of evaluations, are compiled as first needed.

        Several hosts compile each program when it is called, all in the same order.
        """
        if step < stop and hosts.is_alone():
            states, mesh, task = self.abstract(len(hypers)), self.population.mesh(len(hypers)), self.task
            shapes = task.ahead(step, stop) if task.ahead else [task.batches(hypers[0]["seed"], step, stop)]
            traced = _traced(hypers, mesh)
            for batches in shapes:
                table, rows = self.feed(batches, mesh)
                given = [table] * len(hypers), [rows] * len(hypers), np.int32(1), traced
                self.population.prepare(states, *given)
            for function, *arguments in task.rehearsed(states[0].variables) if task.rehearsed else ():
                self.rehearsals.add(function, *arguments)
        try:
            yield
        finally:
            self.population.programs.forget()
            self.rehearsals.forget()


def trainer(
    task: Task,
    timetable: Timetable,
    rule: Rule,
    stepping: Stepping = PLAIN,
    how: str = "loop",
    mesh: Mapping[str, int] = MESH,
) -> Trainer:
    """What trains `task`; `how` is a key of `POPULATIONS`, `mesh` is `config.mesh`."""
    steps = functools.partial(train_steps, task.loss, rule, stepping)
    feed = Feed(timetable.steps_per_call, stepping.accumulate)
    return Trainer(task, timetable, rule, stepping, POPULATIONS[how](steps, mesh, task.inspect), feed, Rehearsals(), {})


def fit(
    trainer: Trainer,
    hypers: Sequence[Mapping],
    states: list[TrainState],
    checkpoints: Checkpoints,
    hooks: Hooks,
    until: int | None = None,
) -> list[TrainState]:
    """Train every member to step `until` (None: `timetable.steps`), and save all; ends early where a stop is asked for.

    A member whose loss or gradient is not finite takes no more steps. Once no member takes any, training ends without
    another checkpoint.
    """
    task, timetable, clock = trainer.task, trainer.timetable, hooks.clock
    step, last = max(int(state.step) for state in states), timetable.steps if until is None else until
    states, pace, saved = list(states), Pace(), time.monotonic()
    if timetable.is_stop(step, task.steps_per_epoch) and any(map(_is_unlogged, states)):  # a stop left that undone
        _log_all(trainer, states, step, checkpoints, hooks, pace)
        checkpoints.save(step, states, again=True)
    while step < last and not stopping.asked():
        stop = min(last, timetable.next_stop(step, task.steps_per_epoch))
        states, step = _train_to(trainer, hypers, states, step, stop, hooks, pace)
        if not any(state.goes_on for state in states):
            return states
        if step == stop:
            is_logged = _log_all(trainer, states, step, checkpoints, hooks, pace)
            pace = Pace(pace.most)
            is_late = hosts.agreed(time.monotonic() - saved > 60 * (timetable.checkpoint_minutes or math.inf))
            if is_logged and (is_late or timetable.is_due(step, timetable.checkpoint_every)):
                with clock.phase("save"):
                    checkpoints.save(step, states)
                saved = time.monotonic()
    with clock.phase("save"):
        checkpoints.save(step, states)
    return states


def _train_to(
    trainer: Trainer,
    hypers: Sequence[Mapping],
    states: list[TrainState],
    step: int,
    stop: int,
    hooks: Hooks,
    pace: Pace,
) -> tuple[list[TrainState], int]:
    """Compiled calls up to `stop`, or until a stop is asked for."""
    population, mesh = trainer.population, mesh_of_state(states)
    packed = population.pack(states)
    traced = _traced(hypers, mesh)
    seen = population.look(packed)
    most, first = None if hosts.is_alone() else hosts.agreed(pace.most), step
    while step < stop and not stopping.asked():
        with hooks.clock.phase("data"):
            end = min(stop, step + (most or pace.most))
            batches = [trainer.task.batches(hyper["seed"], step, end) for hyper in hypers]
            if step == first or step // CHECK_ROWS != (step - len(batches[0].rows)) // CHECK_ROWS:
                require_same_rows(step, batches)
            tables, rows = zip(*(trainer.feed(one, mesh) for one in batches), strict=True)
        count, started, compiling = len(batches[0].rows), time.perf_counter(), population.programs.seconds
        try:
            packed = population.advance(packed, tables, rows, np.int32(count), traced)
        except Interrupted:  # while a program was compiled
            break
        before, step, seen = seen, step + count, population.look(packed)
        spent, compiling = time.perf_counter() - started, population.programs.seconds - compiling
        hooks.clock.add("compile", compiling)
        hooks.clock.add("steps", spent - compiling)
        for member in np.flatnonzero(before.goes_on & ~seen.goes_on):
            hooks.on_not_finite(int(member), int(seen.step[member]))
        items = seen.items[seen.goes_on].sum()
        new = float(items - before.items[seen.goes_on].sum())
        if not compiling:
            pace.add(spent, count, len(hypers), new, count * len(hypers) * trainer.flops_of(tables[0], rows[0]))
        hooks.advance(count, new, float(seen.loss[seen.goes_on].sum() / max(items, 1)))
    return population.unpack(packed), step


def _traced(hypers: Sequence[Mapping], mesh: Mesh) -> list[dict]:
    """What the compiled steps take of each member's values."""
    return place([{name: value for name, value in hyper.items() if name != "seed"} for hyper in hypers], mesh, WHOLE)


def _log_all(
    trainer: Trainer, states: list[TrainState], step: int, checkpoints: Checkpoints, hooks: Hooks, pace: Pace
) -> bool:
    """Log every member that has unlogged metrics, in place; False where a stop was asked for before all were."""
    for member, state in enumerate(states):
        if _is_unlogged(state):
            try:
                with hooks.clock.phase("evaluation"):
                    keep = functools.partial(checkpoints.keep_best, member, step)
                    values, states[member] = _measured(trainer, state, step, keep)
                hooks.log(step, member, values | pace.values())
            except Interrupted:
                return False
    return True


def _is_unlogged(state: TrainState) -> bool:
    return bool(state.goes_on and state.unlogged["skipped"].count)  # which counts steps that were left out too


def _measured(
    trainer: Trainer, state: TrainState, step: int, keep_best: Callable[[Variables], None]
) -> tuple[dict[str, float], TrainState]:
    """A member's unlogged metrics and, where due, its evaluation; and the state, which then has no unlogged ones."""
    task, timetable, metrics = trainer.task, trainer.timetable, whole(state.unlogged)
    skipped = metrics.pop("skipped")
    values = {f"train.{name}": float(sums.mean()) if sums.count else math.nan for name, sums in metrics.items()}
    values |= {"train.skipped": float(skipped.total)} if trainer.stepping.skip_nonfinite else {}
    values |= {"train.tokens": float(metrics["loss"].count)}
    if timetable.is_due(step, timetable.evaluate_every):
        trainer.rehearsals.wait()
        values |= task.evaluate(state.variables)
        if state.average is not None:
            found = task.evaluate(averaged_variables(state))
            values |= {f"{AVERAGED}{name}": value for name, value in found.items()}
        state = _with_best(state, values, timetable, keep_best)
    return values, state._replace(unlogged=place(no_metrics(), mesh_of_state(state), WHOLE))


def _with_best(
    state: TrainState, values: dict[str, float], timetable: Timetable, keep: Callable[[Variables], None]
) -> TrainState:
    if timetable.best_by not in values:
        raise UserError(
            f"config.train.best_by={timetable.best_by!r} is not measured here: choose one of {', '.join(values)}."
        )
    score: Any = np.float32(timetable.height(values[timetable.best_by]))
    if not score >= state.best.score or np.isneginf(score):  # of equal ones the latest, which has learned longest
        return state
    keep(averaged_variables(state) if timetable.best_by.startswith(AVERAGED) else state.variables)
    step: Any = np.array(whole(state.step))  # a copy: the next step is given the state, and each buffer of it once
    return state._replace(best=place(Best(score, step), mesh_of_state(state), WHOLE))
