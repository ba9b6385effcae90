"""Counts of programs beside those that are stored: which are worse, and which better."""

import math
from typing import NamedTuple

from tabulate import tabulate

STORE = "make bench-guard STORE=1"


class Change(NamedTuple):
    """A count of a program, as stored and now, and how much more is no worse, as a share of what is stored."""

    program: str
    count: str
    stored: int
    now: int
    tolerance: float

    @property
    def ratio(self):
        return self.now / self.stored if self.stored else math.inf if self.now else 1.0

    @property
    def is_worse(self):
        return self.ratio > 1 + self.tolerance

    @property
    def is_better(self):
        return self.ratio < 1 - self.tolerance

    def __str__(self):
        return f"{self.program}: {self.count} {self.stored:,} stored, {self.now:,} now, × {self.ratio:.3f}"


def judged(counts, stored_with, version):
    """What is judged: of another release of jax than was stored with, nothing that its compiler decides."""
    return {name: count for name, count in counts.items() if stored_with == version or not count.is_compiled}


def changes(stored, now, counts):
    """Every count that is both stored and here; `stored` and `now` are the numbers of programs by name."""
    return [
        Change(program, name, stored[program][name], numbers[name], count.tolerance)
        for program, numbers in now.items()
        for name, count in counts.items()
        if name in stored.get(program, {})
    ]


def complaints(stored, now, counts):
    """What fails, a line each: counts that are worse, and what is stored or here alone."""
    lines = [f"worse: {change}" for change in changes(stored, now, counts) if change.is_worse]
    return [*lines, *(f"{line}: {STORE}" for line in _missing(stored, now, counts))]


def gains(stored, now, counts):
    """What is better than stored, a line each: nothing fails, and the new number is to be kept."""
    return [f"better: {change}; keep it: {STORE}" for change in changes(stored, now, counts) if change.is_better]


def table(stored, now, counts):
    """The numbers of now, a row a program, and by how much they differ from what is stored."""
    rows = [
        [program, *(_shown(numbers[name], stored.get(program, {}).get(name)) for name in counts)]
        for program, numbers in now.items()
    ]
    return tabulate(rows, headers=("program", *counts), tablefmt="presto", disable_numparse=True, stralign="right")


def _missing(stored, now, counts):
    for program in sorted(stored.keys() ^ now.keys()):
        yield f"{program}: is {'stored, and no program' if program in stored else 'not stored'}"
    for program in sorted(stored.keys() & now.keys()):
        for name in sorted(counts.keys() - stored[program].keys()):
            yield f"{program}: {name} is not stored"


def _shown(number, stored):
    shown = f"{number:,}" if number < 10**6 else f"{number / 10**6:,.1f} M"
    return shown if not stored or number == stored else f"{shown} ({number / stored - 1:+.1%})"
