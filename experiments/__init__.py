"""Experiments: each file holds one `EXPERIMENT`, a record of functions that wires the rooms together."""

import importlib
import pkgutil
from types import ModuleType

from attention_jax.errors import UserError
from attention_jax.runs.experiment import Experiment


def load(name: str) -> Experiment:
    """The experiment that `config.experiment` names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    if name not in names:
        raise UserError(f"config.experiment={name!r}: choose one of {', '.join(names)}.")
    module: ModuleType = importlib.import_module(f"{__name__}.{name}")
    return module.EXPERIMENT
