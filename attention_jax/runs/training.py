"""Training one run or several: the timetable and hyperparameters of a config, the progress bar, the checkpoints."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.evaluation.metrics import metric, require_direction
from attention_jax.runs.experiment import Together
from attention_jax.runs.folder import Run
from attention_jax.runs.keys import require_keys
from attention_jax.runs.machine import Profiler
from attention_jax.stopping import Interrupted
from attention_jax.training.checkpoints import Checkpoints
from attention_jax.training.hyper import rule_of, settled, traced
from attention_jax.training.loop import Hooks, NotFinite, Task, Timetable, Trainer, fit, trainer
from attention_jax.training.optimizer import DECAYING
from attention_jax.training.placement import AXES
from attention_jax.training.progress import Bar, tell
from attention_jax.training.saved import best_folder
from attention_jax.training.state import TrainState, Variables
from attention_jax.training.step import Stepping, stepping_of


class Member(NamedTuple):
    """One seed of one run."""

    config: ConfigDict
    run: Run
    seed: int


def timetable_of(config: ConfigDict) -> Timetable:
    """`config.train`, checked. Raises UserError for a value that cannot be used."""
    others = ("init_from", *Stepping._fields)
    values = {name: value for name, value in config.train.items() if name not in others}
    require_keys("train", values, [name for name in Timetable._fields if name != "height"])
    for name, value in values.items():
        least = 0 if name == "checkpoint_minutes" else 1
        if isinstance(value, int) and value < least:
            raise UserError(f"config.train.{name}={value}: needs {least} or more.")
    best_by = config.train.best_by
    require_direction(best_by, "config.train.best_by")
    return Timetable(**values, height=metric(best_by).height)


def trainer_of(config: ConfigDict, task: Task, how: str) -> Trainer:
    """What trains a task as a config says; `how` is a key of `POPULATIONS`."""
    mesh = config.mesh.to_dict()
    rule = rule_of(config.optimizer)._replace(lines=task.lines)
    return trainer(task, timetable_of(config), rule, stepping_of(config.train), how, mesh)


def hyper_of(config: ConfigDict, seed: int) -> dict[str, Any]:
    """The dynamic values of one member: every number that its optimizer takes, its seed, and its key."""
    numbers = _numbers_of(config)
    return traced(numbers) | {"seed": seed, "key": jax.random.fold_in(jax.random.key(seed), 1)}


def check_training(config: ConfigDict) -> None:
    """Raise UserError for values that no training can use."""
    rule_of(config.optimizer)
    timetable_of(config)
    stepping_of(config.train)
    require_keys("mesh", config.mesh, AXES)
    _numbers_of(config)


def _numbers_of(config: ConfigDict) -> dict[str, Any]:
    """What `config.optimizer` says, checked."""
    numbers = settled(config.optimizer)
    _require_warmup_ends(config)
    return numbers | {"decay_steps": numbers["decay_steps"] or config.train.steps}


def _require_warmup_ends(config: ConfigDict) -> None:
    """Raise UserError where training, or the decay of the learning rate, ends before its warm-up does."""
    warmup, ends = config.optimizer.warmup_steps, {"train.steps": config.train.steps}
    if config.optimizer.decay_steps and config.optimizer.schedule in DECAYING:
        ends["optimizer.decay_steps"] = config.optimizer.decay_steps
    for name, end in ends.items():
        if warmup > end:
            raise UserError(
                f"config.optimizer.warmup_steps={warmup} is more than config.{name}={end}: the learning rate would "
                "never reach its peak. Lower the one or raise the other."
            )


def train_run(config: ConfigDict, run: Run, together: Together) -> None:
    """Train every seed to the end, from the last checkpoint where there is one, if there is anything to train.

    A run without one starts from `together.start_from()`, or afresh where that is None. Raises UserError where
    the loss is not finite, Interrupted where asked to stop.
    """
    if (trainer := together.trainer) is None:
        return run.begin()
    timetable, members = trainer.timetable, [Member(config, run, seed) for seed in config.seeds]
    profiler = Profiler(run.profile)

    def stop(member, step):
        raise NotFinite(members[member].seed, step)

    hypers = hypers_of(members, together)
    with (
        open_checkpoints(run.checkpoints, trainer, members) as checkpoints,
        trainer.compiling(hypers, checkpoints.last_step() or 0, timetable.steps),
    ):
        try:
            was_begun = bool(run.metrics())
            states = restore(trainer, members, checkpoints, together.start_from)
            if checkpoints.last_step() is not None:
                tell(f"resuming at step {int(states[0].step):,}")
            elif was_begun:
                tell(f"{run.checkpoints}: has no checkpoint; training starts at step 0")
            with Bar(timetable.steps, int(states[0].step), profiler.tick) as bar:
                hooks = hooks_of(members, bar.advance, stop)
                states = fit(trainer, hypers, states, checkpoints, hooks)
        except NotFinite as error:
            last = checkpoints.last_step()
            kept = f"the checkpoint of step {last} is kept" if last else "there was no checkpoint yet"
            raise UserError(f"{error}; {kept}. Lower --config.optimizer.learning_rate in another --workdir.") from None
        finally:
            profiler.stop()
    require_finished(int(states[0].step), timetable.steps)


def hypers_of(members: Sequence[Member], together: Together) -> list[dict[str, Any]]:
    """Each member's dynamic values."""
    return [hyper_of(member.config, member.seed) | together.traced(member.config) for member in members]


def hooks_of(members: Sequence[Member], advance, on_not_finite) -> Hooks:
    """Each member logs to its run; the time is that of the first member's run."""

    def log(step, index, values):
        members[index].run.log(step, members[index].seed, values)

    return Hooks(log, advance, on_not_finite, members[0].run.clock)


def require_finished(step: int, steps: int) -> None:
    """Raise Interrupted where training stopped before its end."""
    if step < steps:
        raise Interrupted(f"stopped and saved at step {step:,} of {steps:,}. The same command goes on from there.")


def restore(
    trainer: Trainer,
    members: Sequence[Member],
    checkpoints: Checkpoints,
    start_from: Callable[[], Variables | None],
    among: int | None = None,
) -> list[TrainState]:
    """The states that members go on from: their last checkpoint's, whose metrics their runs then have, or new ones.

    Saved states lie on the mesh of `among` members, with whom these train (None: these alone).
    """
    saved = checkpoints.restore(trainer.abstract(among or len(members))[: len(members)])
    runs = runs_of(members)
    for run, record in zip(runs, [None] * len(runs) if saved is None else saved.beside, strict=True):
        run.rewind(record)
    if saved is None:
        return trainer.create([member.seed for member in members], start_from())
    for member, state in zip(members, saved.state, strict=True):
        if int(state.seed) != member.seed:
            raise UserError(f"{member.run.checkpoints}: of seed {int(state.seed)}, and this is seed {member.seed}.")
    return saved.state


@contextlib.contextmanager
def open_checkpoints(folder: Path, trainer: Trainer, members: Sequence[Member]) -> Iterator[Checkpoints]:
    """The checkpoints in a folder, kept as the timetable says, with the metrics of their members' runs beside each.

    Raises UserError where they are of another vocabulary.
    """
    timetable, vocabulary = trainer.timetable, trainer.task.vocabulary
    runs = runs_of(members)
    checkpoints = Checkpoints(
        folder,
        timetable.keep_last,
        tell,
        is_due=functools.partial(timetable.is_due, period=timetable.checkpoint_every),
        vocabulary=vocabulary,
        beside=lambda step: [run.record(step) for run in runs],
        best=[best_folder(member.run.path, member.seed) for member in members],
    )
    with contextlib.closing(checkpoints):
        checkpoints.require_vocabulary(vocabulary)
        yield checkpoints


def runs_of(members: Sequence[Member]) -> list[Run]:
    """The runs of members, each once."""
    return list({member.run.path: member.run for member in members}.values())
