"""Config files: where one is found, and what it defines."""

import inspect
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attention_jax.errors import UserError

PACKAGE = Path(__file__).resolve().parent.parent


def find(file: str) -> str:
    """The path of a config file: in the working folder, else beside the package (a checkout) or in it (installed).

    Raises UserError where there is none, with those there are.
    """
    home = PACKAGE.parent if (PACKAGE.parent / "launch.py").is_file() else PACKAGE
    for path in (Path(file), home / file):
        if path.suffix == ".py" and path.is_file():
            return str(path)
    known = ", ".join(f"configs/{path.name}" for path in sorted((home / "configs").glob("*.py")))
    raise UserError(f"{file}: no such config; there are {known}.")


def config(file: str, variant: str = "") -> ConfigDict:
    """The config of a file's variant; "" is its default."""
    return runpy.run_path(file)["get_config"](*[variant] * bool(variant))


def space(file: str, variant: str = "", name: str = "") -> list[dict]:
    """The cells of a file's sweep; `name` chooses where it has several.

    Raises UserError where there is none, and for one that is no list of overrides.
    """
    defined = runpy.run_path(file)
    if "sweep" not in defined:
        raise UserError(f"{file}: has no sweep(), the list of overrides that --mode=sweep runs.")
    takes = inspect.signature(defined["sweep"]).parameters
    if name and "name" not in takes:
        raise UserError(f"--sweep={name}: {file} has one sweep alone: leave --sweep out.")
    asked = {"name": name, "variant": variant}
    needs = [key for key, taken in takes.items() if taken.default is taken.empty and not asked.get(key)]
    if needs:
        flag = "--sweep=NAME" if needs == ["name"] else f"a default for {needs[0]!r}"
        raise UserError(f"{file}: sweep({', '.join(takes)}) has no value for {needs[0]!r}: give {flag}.")
    try:
        cells = defined["sweep"](**{key: value for key, value in asked.items() if value and key in takes})
    except ValueError as error:
        raise UserError(f"--sweep={name}: {error}" if name else f"{file}: {error}") from None
    if not (isinstance(cells, (list, tuple)) and all(isinstance(cell, Mapping) for cell in cells)):
        raise UserError(
            f"{file}: sweep() gives a {type(cells).__name__}, and a list of overrides is needed, a dict a cell: "
            "grid(KEY, VALUES), product(…) and seeds(N) of attention_jax.sweeps.space make one."
        )
    return [dict(cell) for cell in cells]


def search(file: str, variant: str = "") -> dict[str, Any]:
    """What a file's search draws from, a draw a key. Raises UserError where there is none."""
    defined = runpy.run_path(file)
    if "search" not in defined:
        raise UserError(f"{file}: has no search(), the draws that --mode=search tries: {{KEY: uniform(0, 0.3), …}}.")
    takes = inspect.signature(defined["search"]).parameters
    try:
        return defined["search"](*[variant] * bool(variant and takes))
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None
