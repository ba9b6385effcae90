"""How near today's code comes to what the code of a kept answer computed: its command, made short, run by both.

    python -m experiments._replay positional_encoding --config.train.steps=100 --config.train.evaluate_every=100

What follows the answer's name goes behind its command: what makes it short, and where its data is. The code of the
answer's commit runs in a work tree of its own, with today's packages. The answer then says how many of the numbers that
both results have are the same to the last bit, and how far apart the others are; clocks are not looked at.

`--seeds=0,1` runs a sweep's cells of these seeds alone. `--kept` compares with what is kept, and runs nothing by the
code of then: on a machine that rounds otherwise than that of the answer this tells little.
"""

import json
import math
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attention_jax.runs.code import ROOT
from experiments import _results

CLOCKS = {"seconds", "step_seconds", "tokens_per_second", "goodput"}
ASKED = {"overrides", "seed", "seeds"}  # which is no finding
NAMING = ("overrides", "seed", "group", "setting")
SHOWN = 20
KEPT, SEEDS = "--kept", "--seeds="
CONFIG_OF_SEEDS = """import functools
import importlib.util

spec = importlib.util.spec_from_file_location("whole", {path!r})
whole = importlib.util.module_from_spec(spec)
spec.loader.exec_module(whole)
get_config = whole.get_config


@functools.wraps(whole.sweep)
def sweep(*arguments, **named):
    return [cell for cell in whole.sweep(*arguments, **named) if {{*cell["seeds"]}} <= {seeds!r}]
"""


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
        there, now = _found(kept, flags, Path(folder))
    both = compared(there, now)
    if not both or now["code"]["changed"]:
        sys.exit(f"error: {name}: {'the code has changes: commit them' if both else 'no number in common'}.")
    gone = sum(key not in both for key, value in numbers(there) if not math.isnan(value))
    apart = {key: far for key, values in both.items() if (far := distance(*values))}
    print(
        f"{name}: {len(both)} numbers, of which {len(both) - len(apart)} are the same to the last bit; {gone} are gone"
    )
    for key in sorted(apart, key=lambda key: -apart[key])[:SHOWN]:
        print(f"  {key}: {both[key][0]} there, {both[key][1]} now")
    short = [flag for flag in flags if flag.split("=")[0] not in {f"--config.{place}" for place in _results.LOCAL}]
    counts = {"numbers": len(both), "same": len(both) - len(apart), "gone": gone}
    found = {**counts, "furthest": max(apart.values(), default=0.0)}
    _results.write(name, kept | {"replayed": {"code": now["code"], "flags": short, **found}})


def _found(kept: Mapping[str, Any], flags: Sequence[str], folder: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What the code of then finds, or what is kept, and what today's finds."""
    seeds = {seed for flag in flags if flag.startswith(SEEDS) for seed in _seeds_of(flag)}
    command = [*arguments(kept["command"]), *(flag for flag in flags if flag != KEPT and not flag.startswith(SEEDS))]
    cells = [cell for cell in kept.get("cells", ()) if cell["seed"] in seeds]
    if seeds and not cells:
        sys.exit(f"error: {SEEDS}{','.join(map(str, sorted(seeds)))}: the answer has no cells of these seeds.")
    if KEPT in flags:
        return {"cells": cells} if seeds else kept, run(command, seeds, folder / "now", ROOT)
    return run_by_both(kept["code"]["commit"], command, seeds, folder)


def _seeds_of(flag: str) -> list[int]:
    try:
        return [int(seed) for seed in flag.removeprefix(SEEDS).split(",")]
    except ValueError:
        sys.exit(f"error: {flag}: needs whole numbers, as {SEEDS}0,1.")


def arguments(command: str) -> list[str]:
    """Of a kept command: --config=configs/nmt.py …"""
    return shlex.split(command.removeprefix("python launch.py"))


def run_by_both(
    commit: str, flags: Sequence[str], seeds: Collection[int], folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of a command by the code of a commit, and by the checkout's."""
    tree = folder / "code"
    _started("git", "worktree", "add", "--quiet", "--detach", str(tree), commit, where=ROOT)
    try:
        return run(flags, seeds, folder / "there", tree), run(flags, seeds, folder / "now", ROOT)
    finally:
        _started("git", "worktree", "remove", "--force", str(tree), where=ROOT)


def run(flags: Sequence[str], seeds: Collection[int], workdir: Path, code: Path) -> dict[str, Any]:
    """The result of a command by the code of a folder; of a sweep's cells of some seeds, where these are given."""
    own = of_seeds(flags, seeds, workdir.with_name(f"{workdir.name}_config"), code) if seeds else flags
    _started(sys.executable, "launch.py", *own, f"--workdir={workdir}", where=code)
    return json.loads((workdir / "result.json").read_text(encoding="utf-8"))


def of_seeds(flags: Sequence[str], seeds: Collection[int], folder: Path, code: Path) -> list[str]:
    """A command's flags with a config in place of its own, written in a folder: the cells of some seeds alone."""
    (config,) = (flag for flag in flags if flag.startswith("--config="))
    file, colon, variant = config.removeprefix("--config=").partition(":")
    folder.mkdir()
    written = folder / Path(file).name
    written.write_text(CONFIG_OF_SEEDS.format(path=str(code / file), seeds={*seeds}), encoding="utf-8")
    return [f"--config={written}{colon}{variant}" if flag == config else flag for flag in flags]


def _started(*command: str, where: Path) -> None:
    ended = subprocess.run(command, cwd=where, stdout=subprocess.DEVNULL)
    if ended.returncode:
        sys.exit(f"error: {shlex.join(command)}, in {where}, ended with {ended.returncode}.")


def compared(there: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Both values of whatever is a number in one of two results and stands in both: NaN where it is null."""
    theirs, ours = dict(numbers(there)), dict(numbers(now))
    both = {key: (theirs[key], ours[key]) for key in theirs if key in ours}
    return {key: values for key, values in both.items() if not all(map(math.isnan, values))}


def distance(there: float, now: float) -> float:
    """|there − now| over the larger of both; infinite where one of them is no number."""
    if there == now:
        return 0.0
    far = abs(there - now) / max(abs(there), abs(now))
    return math.inf if math.isnan(far) else far


def numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a result by where it stands, NaN for null; a sweep's cells and rows by what they are of."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not {*name.split(".")} & (CLOCKS | ASKED):
                yield from numbers(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from numbers(inner, f"{key}[{_name_of(inner, place)}]")
    elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        yield key, math.nan if value is None else value


def _name_of(item: Any, place: int) -> int | str:
    """What tells an item of a list from the others, wherever it stands: a cell's overrides, a row's setting."""
    named = {name: item[name] for name in NAMING if name in item} if isinstance(item, Mapping) else {}
    return json.dumps(named, sort_keys=True) if named else place


if __name__ == "__main__":
    main(sys.argv)
