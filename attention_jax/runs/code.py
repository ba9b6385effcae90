"""Code by what it says: which modules a run imports, and a digest of each without its comments and docstrings."""

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax.runs.provenance import git

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("attention_jax", "experiments", "configs", "launch")
# What reads finished runs and makes none of their numbers.
READERS = ("attention_jax/reports", "attention_jax/evaluation/comparison.py", "attention_jax/evaluation/by_group.py")
DIGITS = 12
SHOWN = 3  # files that are named


class Code(NamedTuple):
    """A version of code: a digest of all, and one of each file."""

    version: str
    files: Mapping[str, str]


def imported(*modules: str, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The files that modules import, and what those import, of this project and of the modules' own packages.

    A file is named from its package on: attention_jax/ops/scoring.py. Those whose names begin with one of `without`
    are left out, and what they alone import.
    """
    packages = {*PACKAGES, *(module.partition(".")[0] for module in modules)}
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        for path in _files_of(waiting.pop()):
            if path not in found and not path.startswith(without):
                found.add(path)
                waiting += [name for name in _read(place_of(path)).imports if name.partition(".")[0] in packages]
    return tuple(sorted(found))


@functools.cache
def code_of(*modules: str) -> Code:
    """The code, as it is now, that makes the numbers of a run of some modules; what reads finished runs is left out."""
    digests = {path: _read(place_of(path)).digest for path in imported(*modules, without=READERS)}
    return Code(_digest(repr(sorted(digests.items()))), digests)


def shown(files: Iterable[str]) -> str:
    """The first of some files by name, and how many there are more."""
    names = sorted(files)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def meaning(text: str) -> str:
    """What a module says without its comments and docstrings."""
    return _meaning(ast.parse(text))


def changes(commit: str, paths: Sequence[str]) -> list[str] | None:
    """Which files say something else than at a commit; None where the commit is not known."""
    there, edited = (git(asked, "--name-only", commit, "--", *paths) for asked in ("ls-tree", "diff"))
    if not commit or there is None or edited is None:
        return None
    new = set(paths) - set(there.split())
    return [path for path in sorted({*edited.split(), *new}) if path in new or not _says_the_same(commit, path)]


def _says_the_same(commit: str, path: str) -> bool:
    before, now = git("show", f"{commit}:{path}"), ROOT / path
    if before is None or not now.is_file():
        return False
    return meaning(before) == meaning(now.read_text(encoding="utf-8"))


def place_of(path: str) -> Path:
    """Where a file lies, such as attention_jax/ops/scoring.py: in this checkout, or where Python finds its package."""
    if (ROOT / path).is_file():
        return ROOT / path
    package = path.partition("/")[0].removesuffix(".py")
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    origin = [spec.origin] if spec and spec.origin else []
    return next((Path(found).parent / path for found in [*places, *origin]), ROOT / path)


def _files_of(module: str) -> Iterator[str]:
    """A module's file, and those of the packages that it is in."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        base = "/".join(parts[:count])
        yield from (path for path in (f"{base}.py", f"{base}/__init__.py") if place_of(path).is_file())


class _Read(NamedTuple):
    imports: tuple[str, ...]
    digest: str  # of what it says


@functools.cache
def _read(path: Path) -> _Read:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return _Read(tuple(found), _digest(_meaning(tree)))


def _meaning(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [line for line in node.body if not _is_text(line)]
    return ast.dump(tree)


def _is_text(line: ast.stmt) -> bool:
    is_constant = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
    return is_constant and isinstance(line.value.value, str)  # type: ignore[attr-defined]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
