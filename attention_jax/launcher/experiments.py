"""Experiments by name: what `config.experiment` means."""

import importlib
import importlib.util
import pkgutil
from types import ModuleType

from attention_jax.errors import UserError
from attention_jax.runs.experiment import Experiment

PACKAGES = ("attention_jax.experiments", "experiments")  # the installed copy; the working folder's or checkout's own


def load(name: str) -> Experiment:
    """The experiment that a config names: `nmt` is a file of an `experiments` package, `mylab.study` any module.

    A file of the working folder's or the checkout's `experiments` goes before the installed package's.
    Raises UserError where there is no such module, or no `EXPERIMENT` in it.
    """
    module = _imported(name) if "." in name else _listed(name)
    found = getattr(module, "EXPERIMENT", None)
    if found is None:
        raise UserError(f"config.experiment={name!r}: {module.__file__} defines no EXPERIMENT.")
    if not isinstance(found, Experiment):
        kind = type(found).__name__
        raise UserError(
            f"config.experiment={name!r}: EXPERIMENT in {module.__file__} is a {kind}; it must be an "
            "attention_jax.runs.experiment.Experiment."
        )
    return found


def names() -> dict[str, str]:
    """Each experiment that a name without a dot can mean, and its module."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        folders = (spec.submodule_search_locations or ()) if spec else ()
        files = [file.name for file in pkgutil.iter_modules(folders) if not file.name.startswith("_")]
        found |= {name: f"{package}.{name}" for name in files}
    return found


def _listed(name: str) -> ModuleType:
    if name not in names():
        known = ", ".join(sorted(names()))
        raise UserError(f"config.experiment={name!r}: choose one of {known}; or name a module of yours: mylab.study.")
    return importlib.import_module(names()[name])


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):  # it, not what it imports
            raise UserError(
                f"config.experiment={name!r}: no module {error.name!r} in the working folder or on PYTHONPATH."
            ) from None
        raise
