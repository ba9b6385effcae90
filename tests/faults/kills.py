"""Runs and sweeps killed with -9 at random moments and started again: kills.py KILLS [SEED].

A kill is survived if what it leaves is whole where it seems so, if the same command, killed again at times, goes on
without a word of damage, and if it ends with what an unbroken run has: parameters bit by bit, metrics, results.
"""

import contextlib
import itertools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.faults.phases import PHASES, PLACES  # noqa: E402
from tests.faults.running import NAMES, Subjects, dice, differences, half_written, shares, wait_for  # noqa: E402

AGAIN = 0.5  # how often what was started again is killed again
AIMED = 0.3  # how often a phase is drawn, of which most are short, and not a moment
STARTS = 6  # of a command until it ends well: a sweep may first find cells that others still hold
DAMAGE = ("Traceback", "cannot be read", "is damaged")


class Kill(NamedTuple):
    """What was killed, in which phase, and what was wrong after it was started again."""

    name: str
    phase: str
    wrong: list[str]


def kill(subjects, name, workdir, seconds, chance):
    """The phase in which a run is killed, at a moment of its whole time or in a phase; "" where it had ended before."""
    process = subjects.start(workdir, *subjects.flags(name))
    if chance.random() < AIMED:
        wait_for(subjects, process, chance.choice(tuple(PLACES)))
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(0, seconds))
    process.kill()
    process.communicate()
    return subjects.phase(process) if process.returncode == -9 else ""


def trial(subjects, name, unbroken, seconds, chance):
    """Kill a run once or more, start it again until it ends, and compare; the kills."""
    workdir = subjects.folder / "killed" / name
    phases, wrong = [], []
    while not phases or chance.random() < AGAIN:
        if not phases:
            shutil.rmtree(workdir, ignore_errors=True)
        if phase := kill(subjects, name, workdir, seconds, chance):
            phases.append(phase)
        elif phases:
            break
        seconds *= 1 if phase else 0.8  # the machine is less busy than it was
        wrong += half_written(workdir)
    for _ in range(STARTS):
        process = subjects.start(workdir, *subjects.flags(name))
        said = process.communicate(timeout=600)[1]
        wrong += [line for line in said.splitlines() if any(word in line for word in DAMAGE)]
        if process.returncode == 0:
            break
    wrong += differences(workdir, unbroken) if process.returncode == 0 else [said]
    return [Kill(name, phase, wrong) for phase in phases]


def tried(subjects, kills, seed=0, names=NAMES):
    """So many kills, of each kind of run in turn."""
    chance, found, turns = dice(seed), [], itertools.cycle(names)
    while len(found) < kills:
        name = next(turns)
        more = trial(subjects, name, *subjects.unbroken(name), chance)
        print(f"{len(found)}: {name}, killed while", "; ".join(each.phase for each in more), *more[0].wrong, flush=True)
        found += more
    return found


def main():
    kills, seed = (int(number) for number in (*sys.argv[1:], "0")[:2])
    with tempfile.TemporaryDirectory() as folder:
        found = tried(Subjects(Path(folder)), kills, seed)
    print(f"\n{'killed with -9 while':24}{'survived / tried':>18}")
    counted = shares((each.phase, not each.wrong) for each in found)
    counted = {phase: counted[phase] for phase in PHASES if phase in counted}
    counted |= shares((name, not each.wrong) for each in found for name in (each.name, "all"))
    for what, (survived, of) in counted.items():
        print(f"{what:24}{survived:>9} / {of}")
    sys.exit(any(each.wrong for each in found))


if __name__ == "__main__":
    main()
