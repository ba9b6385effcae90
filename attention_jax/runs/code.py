"""Code by what it says: which modules a run imports, and a digest of each without what changes no number."""

import contextlib
import fnmatch
import functools
import hashlib
import importlib.util
import json
import re
import sys
import sysconfig
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from attention_jax.runs import source as parsing
from attention_jax.runs.provenance import git
from attention_jax.runs.source import read_source

ROOT = Path(__file__).resolve().parent.parent.parent
# What reads finished runs, or starts them, and makes none of their numbers.
READERS = (
    *("attention_jax/launcher/*", "attention_jax/reports/*", "attention_jax/tasks/*messages.py"),
    *("attention_jax/evaluation/comparison.py", "attention_jax/evaluation/by_group.py"),
    *("attention_jax/stopping.py", "attention_jax/runs/provenance.py", "attention_jax/runs/taking.py"),
    *("attention_jax/training/progress.py", "attention_jax/terminal.py"),
)
OPENED = "attention_jax/tasks/*opened.py"  # what an experiment hands out of its runs; others measure with it
COMMIT = re.compile(r"[0-9a-f]{4,64}")
INSTALLED = ("site-packages", "dist-packages")
STANDARD = Path(sysconfig.get_path("stdlib"))
DIGITS = 12
SHOWN = 3  # files that are named


class Said(NamedTuple):
    """A digest of what a file says, and the modules that it may import."""

    digest: str
    imports: tuple[str, ...]


class Code(NamedTuple):
    """A version of code: a digest of all, and one of each file."""

    version: str
    files: Mapping[str, str]


def imported(*modules: str) -> dict[str, Path]:
    """The files that modules import, and what those import, each by its name: attention_jax/ops/scoring.py.

    A file is the one that Python runs. Followed are this package, the modules' own packages, and all that is neither
    installed nor of the standard library: what lies in the checkout, the working folder or on PYTHONPATH.
    """
    return {name: file for name, (file, _) in _followed(modules, without_readers=False).items()}


def _followed(modules: Sequence[str], without_readers: bool) -> dict[str, tuple[Path, Said]]:
    """What `imported` says, each file with what it was read to say.

    Readers are left out where that is asked, and what they alone import; `modules` themselves never are.
    """
    packages = {"attention_jax", *(module.partition(".")[0] for module in modules)}
    found: dict[str, tuple[Path, Said]] = {}
    waiting, met = [(module, False) for module in modules], set()
    while waiting:
        asked, is_handed_out = waiting.pop()
        for module in _with_packages(asked):
            if (module, is_handed_out) in met:
                continue
            met.add((module, is_handed_out))
            file, _ = _place_of(module)
            if file is None or not (module.partition(".")[0] in packages or _is_own(file)):
                continue
            name = module.replace(".", "/") + ("/__init__.py" if file.name == "__init__.py" else ".py")
            is_reader = module not in modules and _is_reader(name, is_handed_out)
            if name not in found and not (without_readers and is_reader):
                found[name] = file, _read(file, _package_of(module, file))
                waiting += [(one, "experiments/" in name) for one in found[name][1].imports]
    return dict(sorted(found.items()))


def _is_reader(name: str, is_handed_out: bool) -> bool:
    readers = (*READERS, OPENED) if is_handed_out else READERS
    return any(fnmatch.fnmatch(name, pattern) for pattern in readers)


@functools.cache
def code_of(*modules: str) -> Code:
    """The code, as it is now, that makes the numbers of a run of some modules; what reads finished runs is left out."""
    files = _followed(modules, without_readers=True)
    digests = {name: said.digest for name, (_, said) in files.items()}
    return Code(_digest(repr(sorted(digests.items()))), digests)


def shown(files: Iterable[str]) -> str:
    """The first of some files by name, and how many there are more."""
    names = sorted(files)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


@functools.cache
def meaning(text: str) -> str:
    """What a module says without what changes no number, as `read_source` tells it."""
    return read_source(text).meaning


def changes(commit: str, paths: Collection[str]) -> list[str] | None:
    """Which files of the checkout say something else than at a commit; None where the commit is not known."""
    if not COMMIT.fullmatch(commit):  # it is read from a file: nothing else goes to git
        return None
    there, edited = (git(asked, "--name-only", commit, "--", *paths) for asked in ("ls-tree", "diff"))
    if there is None or edited is None:
        return None
    new = set(paths) - set(there.split())
    return [path for path in sorted({*edited.split(), *new}) if path in new or not _says_the_same(commit, path)]


def changed_since(made_by: Sequence[Mapping[str, Any]], now: Code) -> str:
    """How today's code differs from that of results, by the `code` in them; "" where it does not."""
    other = [one for one in made_by if one.get("version") != now.version]
    if not other:
        return ""
    own = [path for path in now.files if (ROOT / path).is_file()]
    known = [None if one["changed"] is not False else changes(one["commit"], own) for one in other]
    files = {path for found in known for path in found or ()}
    if files:
        return f"changed since: {shown(files)}"
    if known == [[]] * len(known) and not any("version" in one for one in other):
        return ""
    there = ", ".join(str(one.get("version", one["commit"] or "no commit")) for one in other)
    return f"which files have changed since is not known ({there} there, {now.version} now)"


def _says_the_same(commit: str, path: str) -> bool:
    before, now = git("show", f"{commit}:{path}"), ROOT / path
    if before is None or not now.is_file():
        return False
    return meaning(before) == meaning(now.read_text(encoding="utf-8"))


def _with_packages(module: str) -> list[str]:
    """A module's name after those of the packages that it is in."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _place_of(module: str) -> tuple[Path | None, list[Path]]:
    """The text file of a module as Python finds it, if it has one, and the folders of the modules in it.

    Nothing is imported for it. What this process has imported is where it was imported from.
    """
    if (loaded := sys.modules.get(module)) is not None:
        return _text(getattr(loaded, "__file__", None)), [Path(path) for path in getattr(loaded, "__path__", ())]
    parent, _, name = module.rpartition(".")
    if not parent:
        spec = importlib.util.find_spec(module)
        return (_text(spec.origin), [*map(Path, spec.submodule_search_locations or ())]) if spec else (None, [])
    folders = _place_of(parent)[1]
    for folder in folders:
        if (file := folder / name / "__init__.py").is_file():
            return file, [folder / name]
        if (file := folder / f"{name}.py").is_file():
            return file, []
    return None, [folder / name for folder in folders if (folder / name).is_dir()]


def _text(file: str | None) -> Path | None:
    return Path(file) if file and file.endswith(".py") and Path(file).is_file() else None


def _is_own(file: Path) -> bool:
    """Whether a file is neither of an installed package nor of Python itself."""
    return not (file.is_relative_to(STANDARD) or any(name in file.parts for name in INSTALLED))


def _package_of(module: str, file: Path) -> str:
    return module if file.name == "__init__.py" else module.rpartition(".")[0]


@functools.cache
def _read(file: Path, package: str) -> Said:
    """What a file says. It is kept by the file's text, beside the compiled programs: parsing takes long."""
    text, folder = file.read_text(encoding="utf-8"), jax.config.jax_compilation_cache_dir
    if folder is None or "://" in folder:
        return _parsed(text, package)
    kept = Path(folder) / "said" / _digest(repr((_reader(), package, text)))
    with contextlib.suppress(OSError, ValueError, TypeError):  # there is none, or it was not written whole
        digest, imports = json.loads(kept.read_bytes())
        return Said(digest, tuple(imports))
    said = _parsed(text, package)
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(said), encoding="utf-8")
    return said


def _parsed(text: str, package: str) -> Said:
    source = read_source(text, package)
    return Said(_digest(source.meaning), source.imports)


@functools.cache
def _reader() -> str:
    """The text of what parses: another one may find something else."""
    return Path(parsing.__file__).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
