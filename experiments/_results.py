"""The answers that are kept in experiments/results/: which of them are of code that has changed since.

    python -m experiments._results                         lists them (make results)
    python -m experiments._results --keep=RUN --name=NAME  keeps the answer of a finished run or sweep

An answer is told from today's code by what its run imports: an edit of a comment, a docstring or a module that it
does not import is none. Of a run what only starts or reads it is left out, which has made the answer of a sweep, but
for what only draws.
`_replay` asks code that has changed how near it comes.
"""

import datetime
import functools
import json
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from absl import app, flags
from tabulate import tabulate

from attention_jax.runs.code import ROOT, changes, code_of, imported, shown

RESULTS = ROOT / "experiments" / "results"
KEEP = flags.DEFINE_string("keep", "", "The folder of a finished run or sweep whose answer is kept.")
NAME = flags.DEFINE_string("name", "", "The name that it is kept by.")
NOT_KEPT = ("data",)  # of a result
DRAWN = ("figures.py", "sweep_figures.py", "extrapolation.py", "maps.py")  # of attention_jax/reports: no number is made
LAUNCHED = ("python -m attention_jax.launcher", "python launch.py")  # by a benchmark, and by a user
LOCAL = (
    "data.path",
    "train.init_from",
    "data.tatoeba",
    "data.multi30k",
    "peers",
    "run",
    "runs",
    "table",
)  # of a config: where things are


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
    made_by = kept["code"] if isinstance(kept["code"], list) else [kept["code"]]
    module = f"experiments.{kept['experiment']}"
    files = _of_sweep(module) if "cells" in kept else code_of(module).files
    every = [changes(code["commit"], files) for code in made_by]
    known = [path for changed in every for path in changed or ()]
    commits = [(code["commit"] or "none") + (" and changes" if code["changed"] else "") for code in made_by]
    return {
        "answer": name,
        "date": kept["date"],
        "commit": ", ".join(commits),
        "code since": _shown(None if None in every else sorted(set(known)), kept.get("replayed"), files),
    }


def _of_sweep(module: str) -> set[str]:
    return set(imported(module, "launch")) - {f"attention_jax/reports/{name}" for name in DRAWN}


def _shown(changed: list[str] | None, replayed: Mapping[str, Any] | None, files: Collection[str]) -> str:
    since = changes(replayed["code"]["commit"], files) if changed and replayed else None
    if replayed and since is not None:
        others = f", the others within {replayed['furthest']:.0e}" if replayed["same"] < replayed["numbers"] else ""
        found = f"{replayed['same']} of {replayed['numbers']} numbers are the same{others}"
        gone = f", {replayed['gone']} are gone" if replayed["gone"] else ""
        short = f" with {' '.join(replayed['flags'])}" if replayed["flags"] else ""
        later = f"; since then changed: {shown(since)}" if since else ""
        return f"changed; run again{short}: {found}{gone}{later}"
    if changed is None:
        return "not known: no such commit here"
    return f"changed: {shown(changed)}" if changed else "the same"


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
    command = re.sub(r" --workdir[= ]\S+", "", result["command"]).replace(*LAUNCHED)
    for place in LOCAL:
        *sections, key = place.split(".")
        owner = functools.reduce(lambda found, section: found.get(section, {}), sections, config)
        if path := owner.get(key):
            owner[key] = ",".join(Path(one).name for one in path.split(","))
            command = command.replace(path, owner[key])
    return {
        "config": config,
        "command": command,
        "date": str(datetime.date.fromtimestamp((workdir / "result.json").stat().st_mtime)),
    }


if __name__ == "__main__":
    app.run(main)
