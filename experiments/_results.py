"""The answers that are kept in experiments/results/: which of them are of code that has changed since.

    python -m experiments._results                         lists them (make results)
    python -m experiments._results --keep=RUN --name=NAME  keeps the answer of a finished run or sweep

An answer is told from today's code by what its run imports: an edit of a comment, a docstring or a module that it
does not import is none.
"""

import ast
import datetime
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from tabulate import tabulate

from attention_jax.runs.provenance import ROOT, git

RESULTS = ROOT / "experiments" / "results"
KEEP = flags.DEFINE_string("keep", "", "The folder of a finished run or sweep whose answer is kept.")
NAME = flags.DEFINE_string("name", "", "The name that it is kept by.")
PACKAGES = ("attention_jax", "experiments", "configs", "launch")
SHOWN = 3  # files that are named
NOT_KEPT = ("data",)  # of a result
LOCAL = (("data", "path"), ("train", "init_from"))  # of a config: where things are


def main(argv: list[str]) -> None:
    if len(argv) > 1 or bool(KEEP.value) != bool(NAME.value):
        sys.exit("error: give both --keep=RUN and --name=NAME, or neither.")
    if KEEP.value:
        path = Path(KEEP.value)
        if not (path / "result.json").is_file():
            sys.exit(f"error: --keep={path}: no result.json there; finish the run first.")
        if (RESULTS / f"{NAME.value}.json").exists():
            sys.exit(f"error: --name={NAME.value}: is kept already; remove it first.")
        result = json.loads((path / "result.json").read_text(encoding="utf-8"))
        if not {"code", "command"} <= set(result):
            sys.exit(f"error: --keep={path}: its result does not say which code made it; run it again.")
        write(NAME.value, result | evidence(path))
    rows = [_row(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(RESULTS.glob("*.json"))]
    print(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))


def _row(name: str, kept: Mapping[str, Any]) -> dict[str, str]:
    commit = kept["code"]["commit"]
    changed = changes(commit, imported(f"experiments.{kept['experiment']}", "launch"))
    return {
        "answer": name,
        "date": kept["date"],
        "commit": (commit or "none") + (" and changes" if kept["code"]["changed"] else ""),
        "code since": _shown(changed),
    }


def _shown(changed: list[str] | None) -> str:
    if changed is None:
        return "not known: no such commit here"
    if not changed:
        return "the same"
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return f"changed: {', '.join(changed[:SHOWN])}{more}"


def write(name: str, kept: Mapping[str, Any]) -> None:
    """Keep an answer under a name."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps({key: value for key, value in kept.items() if key not in NOT_KEPT}, indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def evidence(workdir: Path) -> dict[str, Any]:
    """What a kept answer says of where it comes from beside its code: its config, command and day.

    Paths of this machine are left out: of the data its name stays.
    """
    config = json.loads((workdir / "config.json").read_text(encoding="utf-8"))
    result = json.loads((workdir / "result.json").read_text(encoding="utf-8"))
    command = re.sub(r" --workdir[= ]\S+", "", result["command"])
    for section, key in LOCAL:
        if path := config.get(section, {}).get(key):
            config[section][key] = Path(path).name
            command = command.replace(path, Path(path).name)
    return {
        "config": config,
        "command": command,
        "date": str(datetime.date.fromtimestamp((workdir / "result.json").stat().st_mtime)),
    }


@functools.cache
def imported(*modules: str) -> tuple[str, ...]:
    """The files of this checkout that modules import, and what those import."""
    found: dict[str, None] = {}
    waiting = list(modules)
    while waiting:
        for path in _files_of(waiting.pop()):
            if path not in found:
                found[path] = None
                waiting += _imports(path)
    return tuple(sorted(found))


def _files_of(module: str) -> Iterator[str]:
    """A module's file, and those of the packages that it is in."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        base = "/".join(parts[:count])
        yield from (path for path in (f"{base}.py", f"{base}/__init__.py") if (ROOT / path).is_file())


def _imports(path: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        names: Iterable[str] = ()
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name for name in names if name.split(".")[0] in PACKAGES)


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
    return _meaning(before) == _meaning(now.read_text(encoding="utf-8"))


def _meaning(text: str) -> str:
    """A module without its comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            is_docstring: Callable[[ast.stmt], bool] = lambda line: (  # noqa: E731
                isinstance(line, ast.Expr)
                and isinstance(line.value, ast.Constant)
                and isinstance(line.value.value, str)
            )
            node.body = [line for line in node.body if not is_docstring(line)]
    return ast.dump(tree)


if __name__ == "__main__":
    app.run(main)
