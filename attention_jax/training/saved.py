"""What a run has saved, read again: each seed's best variables, or its last."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.training.checkpoints import Checkpoints, steps_in
from attention_jax.training.loop import abstract_states, is_due
from attention_jax.training.progress import tell
from attention_jax.training.state import TrainState, Variables

CHECKPOINTS = "checkpoints"  # of a run's folder
Init = Callable[[jax.Array], Variables]  # key → variables


def best_variables(config: ConfigDict, run: Path, init: Init, vocabulary: str = "") -> list[Variables]:
    """The best variables of each of `config.seeds`, from the folder of their run.

    Raises UserError where there are none, or they are of another vocabulary.
    """
    with _reading(config, run, vocabulary) as checkpoints:
        last = next(checkpoints.restore_each(_like(config, init))).state
    if not all(int(state.best.step) for state in last):
        raise UserError(
            f"{run}: not evaluated yet: that is due after config.train.evaluate_every={config.train.evaluate_every} "
            "steps. Go on with --mode=train."
        )
    return [state.best.variables for state in last]


def last_variables(
    config: ConfigDict, run: Path, init: Init, vocabulary: str = "", *, count: int
) -> list[list[Variables]]:
    """Each seed's variables at its last `count` checkpoints; raises UserError where there are fewer."""
    with _reading(config, run, vocabulary) as checkpoints:
        restored = itertools.islice(checkpoints.restore_due(_like(config, init)), count)
        found = [[state.variables for state in states] for states in restored]
    if len(found) < count:
        raise UserError(
            f"config.evaluate.last={count}: {run / CHECKPOINTS} has {len(found)} that can be read. Lower it, or train "
            "with a larger --config.train.keep_last."
        )
    return [list(of_seed) for of_seed in zip(*found, strict=True)]


def _like(config: ConfigDict, init: Init) -> list[TrainState]:
    return abstract_states(init, config.optimizer.name, len(config.seeds))


@contextlib.contextmanager
def _reading(config: ConfigDict, run: Path, vocabulary: str) -> Iterator[Checkpoints]:
    """The checkpoints of a run, of which there is one at least, to read."""
    if not steps_in(run / CHECKPOINTS):
        raise UserError(f"{run}: no checkpoint to read. Train it first: --mode=train --workdir={run}.")
    train = config.train
    checkpoints = Checkpoints(
        run / CHECKPOINTS,
        train.keep_last,
        tell,
        is_due=lambda step: is_due(step, train.checkpoint_every, train.steps),
        vocabulary=vocabulary,
        read_only=True,
    )
    with contextlib.closing(checkpoints):
        checkpoints.require_vocabulary(vocabulary)
        yield checkpoints
