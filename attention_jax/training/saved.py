"""What a run has saved, read again on whatever devices there are: each seed's best variables, or its last."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.stores import there
from attention_jax.training.blueprint import Blueprint
from attention_jax.training.checkpoints import Checkpoints, best_of
from attention_jax.training.loop import is_due
from attention_jax.training.placement import BY_SIZE, MESH, Placement, make_mesh
from attention_jax.training.progress import tell
from attention_jax.training.state import Variables
from attention_jax.training.storage import steps_in

CHECKPOINTS, BEST = "checkpoints", "best"  # of a run's folder
Init = Callable[[jax.Array], Variables]  # key → variables


def best_folder(run: Path, seed: int) -> Path:
    """Where the best variables of a seed are."""
    return run / BEST / f"seed_{seed}"


def best_variables(
    config: ConfigDict, run: Path, init: Init, vocabulary: str = "", placement: Placement = BY_SIZE
) -> list[Variables]:
    """The best variables of each of `config.seeds`, from the folder of their run.

    Raises UserError where there are none, or they are of another vocabulary.
    """
    with _reading(config, run, vocabulary) as checkpoints:
        steps = checkpoints.best_steps()
        if not all(steps):
            raise UserError(
                f"{run}: not evaluated yet: that is due after config.train.evaluate_every="
                f"{config.train.evaluate_every} steps. Go on with --mode=train."
            )
        like = _blueprint(config, init, placement).abstract(_mesh(config)).variables
        return [checkpoints.restore_best(member, step, like) for member, step in enumerate(steps)]


def best_steps(run: Path) -> list[int]:
    """The step of each seed's best variables, as the newest checkpoint that can be read has it; none where none can."""
    known = (best_of(there(run / CHECKPOINTS / str(step))) for step in reversed(steps_in(run / CHECKPOINTS)))
    return next((best for best in known if best is not None), [])


def last_variables(
    config: ConfigDict,
    run: Path,
    init: Init,
    vocabulary: str = "",
    placement: Placement = BY_SIZE,
    *,
    count: int,
) -> list[list[Variables]]:
    """Each seed's variables at its last `count` checkpoints; raises UserError where there are fewer."""
    with _reading(config, run, vocabulary) as checkpoints:
        like = [_blueprint(config, init, placement).abstract(_mesh(config))] * len(config.seeds)
        restored = itertools.islice(checkpoints.restore_due(like), count)
        found = [[state.variables for state in states] for states in restored]
    if len(found) < count:
        raise UserError(
            f"config.evaluate.last={count}: {run / CHECKPOINTS} has {len(found)} that can be read. Lower it, or train "
            "with a larger --config.train.keep_last."
        )
    return [list(of_seed) for of_seed in zip(*found, strict=True)]


def _blueprint(config: ConfigDict, init: Init, placement: Placement) -> Blueprint:
    return Blueprint(init, config.optimizer.name, placement, bool(config.train.ema))


def _mesh(config: ConfigDict) -> Mesh:
    """The mesh that the run was trained on, or all devices where there are others now."""
    try:
        return make_mesh(config.mesh)
    except UserError:
        return make_mesh(MESH)


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
        best=[best_folder(run, seed) for seed in config.seeds],
        read_only=True,
    )
    with contextlib.closing(checkpoints):
        checkpoints.require_vocabulary(vocabulary)
        yield checkpoints
