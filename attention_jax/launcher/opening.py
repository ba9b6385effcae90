"""A trained run opened from Python: `attention_jax.load(FOLDER)`."""

import os
import time
from typing import Any

from attention_jax import stores
from attention_jax.errors import UserError
from attention_jax.launcher import experiments, stored
from attention_jax.runs.folder import Run
from attention_jax.sweeps.folder import is_sweep
from attention_jax.sweeps.settings import without_settings


def load(folder: str | os.PathLike[str], *, which: str = "best", seed: int | None = None) -> Any:
    """A trained run, or a finished cell of a sweep: its config, model, variables and vocabulary, and what it can do.

    `which` variables, "best" or "last", of which of the run's seeds, the first unless `seed` names another. A run of
    translation is a `tasks.translation.opened.OpenedTranslator`, one of a language model a
    `tasks.language_model.opened.OpenedLanguageModel`; the folder is read and stays as it is. The matmul precision of
    the run's config becomes this process's. Raises UserError where there is no such run, checkpoint or seed.
    """
    path = stores.here(folder)
    if is_sweep(path):
        raise UserError(f"{path}: a sweep; open one of its cells: load({str(path / 'cells')!r} and its name).")
    config = without_settings(stored.read(path))
    experiment = experiments.load(config.experiment)
    if experiment.opened is None:
        raise UserError(f"{path}: config.experiment={config.experiment!r} has nothing to open.")
    session = experiment.open(config, path / "data")
    run = Run(path, time.perf_counter())
    return experiment.opened(config, run, session, which, config.seeds[0] if seed is None else seed)
