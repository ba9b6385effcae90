"""Whether today's code computes what the code of a kept answer did: its command, made short, run by both.

    python -m experiments._replay positional_encoding --config.train.steps=20 --config.train.evaluate_every=20

What follows the answer's name goes behind its command: what makes it short, and where its data is. The code of the
answer's commit runs in a work tree of its own, with today's packages. Where every number that both results have is the
same to the last bit, but for clocks, the answer says so; numbers that differ are listed.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attention_jax.runs.code import ROOT
from experiments import _results

CLOCKS = {"seconds", "step_seconds", "tokens_per_second", "goodput"}
ASKED = {"overrides", "seed", "seeds"}  # which is no finding
SHOWN = 20


def main(argv: list[str]) -> None:
    if len(argv) < 2:
        sys.exit("error: name a kept answer: python -m experiments._replay NAME [FLAG …]")
    name, flags = argv[1], argv[2:]
    path = _results.RESULTS / f"{name}.json"
    if not path.is_file():
        sys.exit(f"error: {name}: no {path.name} in {path.parent}; make results lists what is kept.")
    kept = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(kept["code"], list):
        sys.exit(f"error: {name}: is of several commits; replay what each of them made.")
    with tempfile.TemporaryDirectory() as folder:
        there, now = run_by_both(kept["code"]["commit"], [*arguments(kept["command"]), *flags], Path(folder))
    same, differ = compared(there, now)
    print(f"{name}: {len(same)} numbers are the same, {len(differ)} are not")
    for key, values in list(differ.items())[:SHOWN]:
        print(f"  {key}: {values[0]} there, {values[1]} now")
    if differ or not same or now["code"]["changed"]:
        sys.exit("The answer is left as it is" + ("." if differ else ": commit what has changed."))
    short = [flag for flag in flags if flag.split("=")[0] not in {f"--config.{place}" for place in _results.LOCAL}]
    _results.write(name, kept | {"replayed": {"code": now["code"], "flags": short, "numbers": len(same)}})


def arguments(command: str) -> list[str]:
    """Of a kept command: --config=configs/nmt.py …"""
    return shlex.split(command.removeprefix("python launch.py"))


def run_by_both(commit: str, flags: Sequence[str], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of a command by the code of a commit, and by the checkout's."""
    tree = folder / "code"
    _started("git", "worktree", "add", "--quiet", "--detach", str(tree), commit, where=ROOT)
    try:
        found = []
        for where in (tree, ROOT):
            workdir = folder / f"run of {where.name}"
            _started(sys.executable, "launch.py", *flags, f"--workdir={workdir}", where=where)
            found.append(json.loads((workdir / "result.json").read_text(encoding="utf-8")))
        return found[0], found[1]
    finally:
        _started("git", "worktree", "remove", "--force", str(tree), where=ROOT)


def _started(*command: str, where: Path) -> None:
    ended = subprocess.run(command, cwd=where, stdout=subprocess.DEVNULL)
    if ended.returncode:
        sys.exit(f"error: {shlex.join(command)}, in {where}, ended with {ended.returncode}.")


def compared(there: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], dict[str, tuple[float, float]]]:
    """Which of the numbers that two results both have are the same to the last bit, and the others with both values."""
    theirs, ours = dict(numbers(there)), dict(numbers(now))
    both = [key for key in theirs if key in ours]
    differ = {key: (theirs[key], ours[key]) for key in both if repr(theirs[key]) != repr(ours[key])}  # nan is nan
    return [key for key in both if key not in differ], differ


def numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a result, by where it stands; a sweep's cells by what they set."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not {*name.split(".")} & (CLOCKS | ASKED):
                yield from numbers(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            is_cell = key == "cells"
            what = json.dumps([inner["overrides"], inner.get("seed")], sort_keys=True) if is_cell else place
            yield from numbers(inner, f"{key}[{what}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield key, value


if __name__ == "__main__":
    main(sys.argv)
