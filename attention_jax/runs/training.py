"""A run's training: its plan and hyperparameters from the config, its progress bar, its checkpoints."""

import sys
from collections.abc import Callable
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


def plan_of(config: ConfigDict) -> Plan:
    """`config.train` with the schedule's name."""
    schedule = config.optimizer.schedule
    if schedule not in SCHEDULES:
        raise UserError(f"config.optimizer.schedule={schedule!r}: choose one of {', '.join(SCHEDULES)}.")
    return Plan(**config.train, schedule=schedule)


def hyper_of(config: ConfigDict, seed: int) -> dict[str, Any]:
    """The dynamic values of one member: every number of `config.optimizer`, and the seed with its key."""
    numbers = {name: jnp.float32(value) for name, value in config.optimizer.items() if name != "schedule"}
    return numbers | {"seed": seed, "key": jax.random.fold_in(jax.random.key(seed), 1)}


def train_members(config: ConfigDict, run: Run, task: Task, start_from: Variables | None) -> list[Variables]:
    """Train every seed to the end, from the last checkpoint where there is one; each one's best variables.

    Raises UserError where the loss is not finite, Interrupted where asked to stop.
    """
    plan = plan_of(config)
    checkpoints = Checkpoints(run.checkpoints, plan.keep_last, _tell)
    try:
        states = _restore(config, run, task, checkpoints, start_from)
        hypers = [hyper_of(config, seed) for seed in config.seeds]
        profiler = Profiler(run.profile)
        with interruptible() as is_interrupted, _Bar(plan.steps, int(states[0].step), profiler.tick) as bar:
            states = fit(task, plan, hypers, states, checkpoints, Hooks(run.log, bar.advance, is_interrupted))
        profiler.stop()
    except NotFinite as error:
        last = checkpoints.last_step()
        kept = f"the checkpoint of step {last} is kept" if last else "there was no checkpoint yet"
        raise UserError(f"{error}; {kept}. Lower --config.optimizer.learning_rate in another --workdir.") from None
    finally:
        checkpoints.close()
    step = int(states[0].step)
    if step < plan.steps:
        raise Interrupted(f"stopped and saved at step {step:,} of {plan.steps:,}. The same command goes on from there.")
    return [state.best.variables for state in states]


def best_variables(config: ConfigDict, run: Run, init) -> list[Variables]:
    """Each seed's best variables, from the last checkpoint. Raises UserError where there is none."""
    like = initial_states(init, config.seeds)
    checkpoints = Checkpoints(run.checkpoints, config.train.keep_last, _tell)
    restored = checkpoints.restore(like)
    checkpoints.close()
    if restored is None:
        raise UserError(f"{run.path}: no checkpoint to read. Train it first: --mode=train --workdir={run.path}.")
    return [state.best.variables for state in restored[1]]


def _restore(
    config: ConfigDict, run: Run, task: Task, checkpoints: Checkpoints, start_from: Variables | None
) -> list[TrainState]:
    states = initial_states(task.init, config.seeds, start_from)
    restored = checkpoints.restore(states)
    step, states = restored if restored is not None else (0, states)
    run.rewind(step)
    if step:
        _tell(f"resuming at step {step:,}")
    return states


class _Bar:
    """A progress bar over steps with the loss and tokens a second beside it."""

    def __init__(self, total: int, done: int, tick: Callable[[], None]):
        self._tick = tick
        is_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=total, initial=done, unit="step", dynamic_ncols=True, mininterval=0.5 if is_terminal else 30
        )
        self._tokens = 0.0

    def advance(self, steps: int, shown: dict[str, float]) -> None:
        self._tick()
        self._tokens += shown["tokens"]
        elapsed = self._bar.format_dict["elapsed"] or 1e-9
        self._bar.set_postfix_str(f"loss {shown['loss']:.3f}, {self._tokens / elapsed:,.0f} tokens/s", refresh=False)
        self._bar.update(steps)

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *exception) -> None:
        self._bar.close()


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
