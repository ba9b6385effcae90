"""A wave: cells that train together, each into a run folder of its own, as if it had been run alone."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from attention_jax import hosts
from attention_jax.runs.experiment import Together
from attention_jax.runs.folder import Run
from attention_jax.runs.training import Bar, Member, hooks_of, hypers_of, open_checkpoints, restore, tell
from attention_jax.stopping import Interrupted
from attention_jax.training.checkpoints import Saved
from attention_jax.training.loop import Trainer, fit
from attention_jax.training.state import TrainState
from attention_jax.training.storage import steps_in


class Wave(NamedTuple):
    """Cells that train together, and where their common checkpoints are."""

    configs: Sequence[ConfigDict]
    runs: Sequence[Run]
    folder: Path

    @property
    def members(self) -> list[Member]:
        cells = zip(self.configs, self.runs, strict=True)
        return [Member(config, run, seed) for config, run in cells for seed in config.seeds]


def train_wave(wave: Wave, together: Together, until: int, bar: Bar) -> list[int | None]:
    """Train a wave's members to a step, from where they are; for each cell the step at which it diverged, if it did.

    Every cell then has the checkpoints that it would have alone. Raises Interrupted where asked to stop.
    """
    trainer, members = together.trainer, wave.members
    if trainer is None:
        return [None] * len(wave.runs)
    hooks = hooks_of(members, _counting(bar, len(members)), _telling(members))
    folder = wave.runs[0].checkpoints if len(wave.runs) == 1 else wave.folder / "checkpoints"
    hypers = hypers_of(members, together)
    with (
        open_checkpoints(folder, trainer, members) as checkpoints,
        trainer.compiling(hypers, checkpoints.last_step() or 0, until),
    ):
        states = _own_states(wave, trainer) if checkpoints.last_step() is None and len(wave.runs) > 1 else None
        states = states or restore(trainer, members, checkpoints, together.start_from)
        bar.skip(max(int(state.step) for state in states) * len(members))
        states = fit(trainer, hypers, states, checkpoints, hooks, until)
        step = max(int(state.step) for state in states)
        if step < until and any(state.goes_on for state in states):
            raise Interrupted(f"stopped and saved at step {step:,}.")
        if len(wave.runs) > 1:
            saved = list(checkpoints.restore_each(trainer.abstract(len(members))))
            _divide(wave, trainer, saved[::-1])
    bounds = itertools.accumulate((len(config.seeds) for config in wave.configs), initial=0)
    owned = [states[first:last] for first, last in itertools.pairwise(bounds)]
    return [min((int(state.step) for state in own if not state.goes_on), default=None) for own in owned]


def _own_states(wave: Wave, trainer: Trainer) -> list[TrainState] | None:
    """Every cell's own last checkpoint, where all have one and of the same step."""
    found: list[TrainState] = []
    if not hosts.by_first(lambda: all(steps_in(run.checkpoints) for run in wave.runs)):
        return None
    for config, run in zip(wave.configs, wave.runs, strict=True):
        members = [Member(config, run, seed) for seed in config.seeds]
        with open_checkpoints(run.checkpoints, trainer, members) as checkpoints:
            found += restore(trainer, members, checkpoints, lambda: None, among=len(wave.members))
    return found if len({int(state.step) for state in found}) == 1 else None


def _divide(wave: Wave, trainer: Trainer, every: Sequence[Saved]) -> None:
    """Give every cell its own members' states of every checkpoint, the oldest first."""
    first = 0
    for config, run in zip(wave.configs, wave.runs, strict=True):
        last = first + len(config.seeds)
        members = [Member(config, run, seed) for seed in config.seeds]
        with open_checkpoints(run.checkpoints, trainer, members) as checkpoints:
            for saved in every:
                if all(state.goes_on for state in saved.state[first:last]):
                    checkpoints.save(saved.step, saved.state[first:last])
        first = last


def _counting(bar: Bar, members: int) -> Callable[[int, float, float], None]:
    return lambda steps, tokens, loss: bar.advance(steps * members, tokens, loss)


def _telling(members: Sequence[Member]) -> Callable[[int, int], None]:
    def on_not_finite(index, step):
        member = members[index]
        tell(f"{member.run.path.name}, seed {member.seed}: not finite at step {step:,}, and left there")

    return on_not_finite
