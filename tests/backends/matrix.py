"""The conformance matrix as tables: what each backend takes, and how many cells of each value are right.

    python tests/backends/matrix.py     # make conformance

It takes as many processes as there are processors.
"""

import concurrent.futures
import multiprocessing
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from backends.conformance import AXES, FUSED, INTERPRETED, PLAIN, covering, name_of, refusal, verdict

VALUES = [(axis, value) for axis in AXES if axis != "backend" for value in AXES[axis]]


def acceptance():
    """What each backend takes: of the fused ones by every value alone, of the others scores by normalizers."""
    tables: dict[str, list[str]] = {}
    for backend in AXES["backend"]:
        rows = [
            [_shown("score", score), *(_mark(backend, score=score, normalizer=name) for name in AXES["normalizer"])]
            for score in AXES["score"]
        ]
        tables.setdefault(_table(["", *map(name_of, AXES["normalizer"])], rows), []).append(f"`{name_of(backend)}`")
    taken = "\n".join(f"\n{', '.join(names)}\n\n{table}" for table, names in tables.items())
    rows = [
        [f"{axis} {_shown(axis, value)}", *(_mark(backend, **{axis: value}) for backend in FUSED)]
        for axis, value in VALUES
        if axis not in ("dtype", "mode") or value in ("cached", "packed")
    ]
    said = "Those that others ship, where one thing is other than scaled_dot, softmax and no mask"
    return f"{taken}\n\n{said}\n\n{_table(['', *FUSED], rows)}"


def counted(cells, wrong):
    """How many cells of every value were computed, by backend, and how many of them are wrong."""
    backends = sorted({cell.backend for cell in cells}, key=[*AXES["backend"], *INTERPRETED].index)
    rows = []
    for axis, value in VALUES:
        of_value = [cell for cell in cells if getattr(cell, axis) == value]
        of_backends = [[cell for cell in of_value if cell.backend == backend] for backend in backends]
        rows.append([f"{axis} {_shown(axis, value)}", *(_judged(here, wrong) for here in of_backends)])
    return _table(["", *map(name_of, backends)], rows)


def _mark(backend, **values):
    return "–" if refusal(PLAIN._replace(backend=backend, **values)) else "✓"


def _judged(cells, wrong):
    bad = sum(cell in wrong for cell in cells)
    return "–" if not cells else f"**{bad} wrong of {len(cells)}**" if bad else f"{len(cells)} right"


def _shown(axis, value):
    if axis == "dropout":
        return "on" if value else "off"
    return name_of(value) + ", learned" * ("learned=" in value)


def _table(headers, rows):
    lines = [headers, *rows]
    found = ["| " + " | ".join(line) + " |" for line in lines]
    found.insert(1, "|---" * len(headers) + "|")
    return "\n".join(found).replace("|  |", "| |", 1)


def main():
    """Compute every cell, in as many processes as there are processors, and print the matrix."""
    from tqdm import tqdm

    cells, wrong = [*covering(), *covering(INTERPRETED)], {}
    with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        found = tqdm(pool.map(verdict, cells, chunksize=4), total=len(cells), desc="conformance", unit="cell")
        for cell, problem in zip(cells, found, strict=True):
            if problem:
                wrong[cell] = problem
                tqdm.write(f"wrong: {cell}: {problem}", file=sys.stderr)
    print("What each backend takes (✓) and refuses (–)\n" + acceptance())
    print(f"\nCells against the float64 oracle, forward and gradients: {len(cells)} computed, {len(wrong)} wrong\n")
    print(counted(cells, wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
