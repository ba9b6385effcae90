"""A run's training: its plan and hyperparameters from the config, its progress bar, its checkpoints."""

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
from tqdm import tqdm

from attention_jax.errors import UserError
from attention_jax.runs.folder import Run
from attention_jax.runs.interrupt import Interrupted, interruptible
from attention_jax.runs.machine import Profiler
from attention_jax.training.checkpoints import Checkpoints
from attention_jax.training.loop import Hooks, NotFinite, Plan, Task, fit, initial_states
from attention_jax.training.optimizer import SCHEDULES
from attention_jax.training.state import TrainState, Variables

FRACTIONS = ("b2", "dropout", "label_smoothing")


def plan_of(config: ConfigDict) -> Plan:
    """`config.train` with the schedule's name. Raises UserError for a value that cannot be used."""
    schedule = config.optimizer.schedule
    if schedule not in SCHEDULES:
        raise UserError(f"config.optimizer.schedule={schedule!r}: choose one of {', '.join(SCHEDULES)}.")
    values = {name: value for name, value in config.train.items() if name != "init_from"}
    for name, value in values.items():
        if isinstance(value, int) and value < 1:
            raise UserError(f"config.train.{name}={value}: needs 1 or more.")
    return Plan(**values, schedule=schedule)


def hyper_of(config: ConfigDict, seed: int) -> dict[str, Any]:
    """The dynamic values of one member: every number of `config.optimizer`, and the seed with its key."""
    numbers = {name: value for name, value in config.optimizer.items() if name != "schedule"}
    for name, value in numbers.items():
        if value < 0 or (name in FRACTIONS and value >= 1):
            raise UserError(
                f"config.optimizer.{name}={value}: needs 0 or more{' and less than 1' * (name in FRACTIONS)}."
            )
    numbers["decay_steps"] = numbers["decay_steps"] or config.train.steps
    return {name: jnp.float32(value) for name, value in numbers.items()} | {
        "seed": seed,
        "key": jax.random.fold_in(jax.random.key(seed), 1),
    }


def train_members(config: ConfigDict, run: Run, task: Task, start_from: Callable[[], Variables | None]) -> None:
    """Train every seed to the end, from the last checkpoint where there is one.

    A run without one starts from `start_from()`, or afresh where that is None. Raises UserError where
    the loss is not finite, Interrupted where asked to stop.
    """
    plan = plan_of(config)
    hypers = [hyper_of(config, seed) for seed in config.seeds]
    checkpoints = _checkpoints(config, run)
    profiler = Profiler(run.profile)
    try:
        states = _restore(config, run, task, checkpoints, start_from)
        with interruptible() as is_interrupted, _Bar(plan.steps, int(states[0].step), profiler.tick) as bar:
            states = fit(task, plan, hypers, states, checkpoints, Hooks(run.log, bar.advance, is_interrupted))
    except NotFinite as error:
        last = checkpoints.last_step()
        kept = f"the checkpoint of step {last} is kept" if last else "there was no checkpoint yet"
        raise UserError(f"{error}; {kept}. Lower --config.optimizer.learning_rate in another --workdir.") from None
    finally:
        profiler.stop()
        checkpoints.close()
    step = int(states[0].step)
    if step < plan.steps:
        raise Interrupted(f"stopped and saved at step {step:,} of {plan.steps:,}. The same command goes on from there.")


def best_variables(config: ConfigDict, run: Run, init) -> list[Variables]:
    """Each seed's best variables. Raises UserError where there are none."""
    with _saved(config, run) as checkpoints:
        _, last = next(checkpoints.restore_each(initial_states(init, config.seeds)))
    if not all(int(state.best.step) for state in last):
        raise UserError(f"{run.path}: not evaluated yet (config.train.evaluate_every); go on with --mode=train.")
    return [state.best.variables for state in last]


def last_variables(config: ConfigDict, run: Run, init, count: int) -> list[list[Variables]]:
    """Each seed's variables at its last `count` checkpoints. Raises UserError where there are fewer."""
    with _saved(config, run) as checkpoints:
        restored = itertools.islice(checkpoints.restore_due(initial_states(init, config.seeds)), count)
        found = [[state.variables for state in states] for states in restored]
    if len(found) < count:
        raise UserError(f"config.evaluate.last={count}: {run.checkpoints} holds {len(found)} that can be read.")
    return [list(members) for members in zip(*found, strict=True)]


@contextlib.contextmanager
def _saved(config: ConfigDict, run: Run) -> Iterator[Checkpoints]:
    """The checkpoints of a run, of which there is one at least, to read."""
    if not any(run.checkpoints.glob("[0-9]*")):
        raise UserError(f"{run.path}: no checkpoint to read. Train it first: --mode=train --workdir={run.path}.")
    with contextlib.closing(_checkpoints(config, run, read_only=True)) as checkpoints:
        yield checkpoints


def _checkpoints(config: ConfigDict, run: Run, read_only: bool = False) -> Checkpoints:
    plan = plan_of(config)
    is_due = functools.partial(plan.is_due, period=plan.checkpoint_every)
    return Checkpoints(run.checkpoints, plan.keep_last, _tell, is_due=is_due, read_only=read_only)


def _restore(
    config: ConfigDict, run: Run, task: Task, checkpoints: Checkpoints, start_from: Callable[[], Variables | None]
) -> list[TrainState]:
    restored = checkpoints.restore(initial_states(task.init, config.seeds))
    if restored is None:
        run.rewind(0)
        return initial_states(task.init, config.seeds, start_from())
    step, states = restored
    run.rewind(step)
    _tell(f"resuming at step {step:,}")
    return states


class _Bar:
    """A progress bar over steps with the loss and tokens a second beside it."""

    def __init__(self, total: int, done: int, tick: Callable[[], None]):
        interval = 0.5 if sys.stderr.isatty() else 30
        self._bar = tqdm(total=total, initial=done, unit="step", dynamic_ncols=True, mininterval=interval)
        self._tick = tick
        self._tokens = 0.0

    def advance(self, steps: int, tokens: float, loss: float) -> None:
        """Some steps later."""
        self._tick()
        self._tokens += tokens
        rate = self._tokens / (self._bar.format_dict["elapsed"] or 1e-9)
        self._bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} tokens/s", refresh=False)
        self._bar.update(steps)

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *exception) -> None:
        self._bar.close()


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
