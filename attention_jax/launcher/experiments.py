"""Experiments by name: what `config.experiment` means."""

import ast
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from attention_jax.errors import UserError
from attention_jax.runs.experiment import Experiment

PACKAGES = ("attention_jax.experiments", "experiments")  # the installed copy; the working folder's and checkout's own
ROOT = Path(__file__).resolve().parent.parent.parent  # of the checkout


def load(name: str) -> Experiment:
    """The experiment that a config names: `nmt` is a file of an `experiments` package, `mylab.study` any module.

    A file of the working folder's `experiments` goes before the checkout's, and these before the installed package's.
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
        files = [file.name for file in pkgutil.iter_modules(_folders(package)) if not file.name.startswith("_")]
        found |= {name: f"{package}.{name}" for name in files}
    return found


def _folders(package: str) -> list[str]:
    """Where a package's modules are looked for, the first first.

    Of several `experiments`, Python itself takes one alone, which would hide the checkout's or the working folder's.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        return []
    module = importlib.import_module(package)
    if package == "experiments":
        homes = [Path.cwd(), *[ROOT] * (ROOT / "launch.py").is_file()]
        own = [str(home / package) for home in homes if (home / package).is_dir()]
        module.__path__ = list(dict.fromkeys((*own[:1], *module.__path__, *own)))
    return list(module.__path__)


def _listed(name: str) -> ModuleType:
    if name not in names():
        known = ", ".join(sorted(names()))
        raise UserError(f"config.experiment={name!r}: choose one of {known}; or name a module of yours: mylab.study.")
    return importlib.import_module(names()[name])


def _imported(name: str) -> ModuleType:
    """A module of the user's, imported once its source is known to define an experiment.

    The name may be of a stranger's run: of another module, nothing runs.
    """
    if name not in sys.modules:
        file = _source_of(name)
        if not _defines(file, "EXPERIMENT"):
            raise UserError(f"config.experiment={name!r}: {file} defines no EXPERIMENT.")
    return importlib.import_module(name)


def _source_of(name: str) -> Path:
    """The file of a module, found without running anything. Raises UserError where there is none."""
    parts = name.split(".")
    folders: Sequence[str] | None = None
    for count in range(1, len(parts) + 1):
        part = ".".join(parts[:count])
        found = (finder.find_spec(part, folders) for finder in sys.meta_path) if part.isascii() else ()
        spec = next(filter(None, found), None) if all(map(str.isidentifier, parts)) else None
        folders = None if spec is None else spec.submodule_search_locations
        if spec is None or (count < len(parts) and folders is None):
            raise UserError(f"config.experiment={name!r}: no module {part!r} in the working folder or on PYTHONPATH.")
    return Path(spec.origin or "") if spec is not None else Path()


def _defines(file: Path, wanted: str) -> bool:
    """Whether a file of Python binds a name outside of its functions and classes."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return file.suffix == ".py" and file.is_file()  # its own error is the one to tell
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    imported = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    return wanted in (*names, *(alias.asname or alias.name for alias in imported))
