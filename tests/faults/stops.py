"""Runs, sweeps and other modes asked to stop in each phase of their work: stops.py [SIGNAL…].

Each ends in time with 143 (130 after Ctrl-C) and without a traceback, what it says is saved is there, and the same
command goes on to what an unbroken run has. Python itself, before the launcher listens, ends by the signal.
"""

import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from attention_jax.training.storage import steps_in  # noqa: E402
from tests.faults.phases import STARTING  # noqa: E402
from tests.faults.running import Subjects, differences, half_written, is_alive, wait_for  # noqa: E402

SIGNALS = ("SIGTERM", "SIGHUP", "SIGUSR2", "SIGINT")
LIMIT = 40.0  # seconds; a quiet machine needs 20
LARGE = 200  # times the small corpus: what is imported while a stop comes


class Case(NamedTuple):
    """What is stopped, in which phase: a run of `NAMES`, or another mode of one that is finished."""

    name: str
    phase: str
    mode: tuple[str, ...] = ()  # its flags
    is_large: bool = False  # its data
    is_unfinished: bool = False  # it has trained before, and has no result


CASES = (
    Case("translator", STARTING),
    *(Case(name, "importing data", is_large=True) for name in ("translator", "language model")),
    *(Case("translator", phase) for phase in ("compiling", "training", "saving", "evaluating")),
    *(Case("language model", phase) for phase in ("compiling", "training", "saving", "evaluating")),
    *(Case("translator", phase, is_unfinished=True) for phase in ("restoring", "measuring", "decoding", "reporting")),
    Case("translator", "decoding", ("--mode=translate",)),
    Case("translator", "measuring", ("--mode=evaluate",)),
    Case("language model", "decoding", ("--mode=generate", "--config.generate.tokens=100000")),
    Case("sweep inline", "training"),
    Case("sweep inline", "decoding"),
    Case("sweep processes", "awaiting workers"),
)


class Stop(NamedTuple):
    """What was stopped by which signal, how many seconds that took, and what was wrong."""

    case: Case
    how: str
    seconds: float
    wrong: list[str]


def stop(subjects, case, how, unbroken):
    """Send a signal to a process in a phase; None where it never came to it."""
    workdir = _folder(subjects, case, unbroken)
    process = _start(subjects, case, workdir)
    if not wait_for(subjects, process, case.phase):
        process.kill()
        process.communicate()
        return None
    started = time.monotonic()
    process.send_signal(getattr(signal, how))
    said = process.communicate(timeout=120)[1]
    seconds = time.monotonic() - started
    wrong = [*_of_end(case, how, process.returncode, said, workdir), *half_written(workdir)]
    wrong += [f"process {pid} goes on" for pid in subjects.processes() if is_alive(pid)]
    wrong += [f"{seconds:.0f} s"] * (seconds > LIMIT)
    return Stop(case, how, seconds, wrong)


def _start(subjects, case, workdir):
    large = [f"--config.data.path={subjects.large(case.name, LARGE)}"] if case.is_large else []
    flags = case.mode or (*subjects.flags(case.name), *large)
    with open(subjects.folder / "text.txt", encoding="utf-8") as text:
        return subjects.start(workdir, *flags, stdin=text)


def _folder(subjects, case, unbroken):
    workdir = subjects.folder / "stopped" / case.name
    shutil.rmtree(workdir, ignore_errors=True)
    if case.is_unfinished or case.mode:
        shutil.copytree(unbroken, workdir)
    if case.is_unfinished:
        (workdir / "result.json").unlink()
    return workdir


def _of_end(case, how, status, said, workdir):
    """What is wrong with how a process ended."""
    number = getattr(signal, how)
    known = {130 if how == "SIGINT" else 143} | ({-number} if case.phase == STARTING else set())
    if status not in known and not (status == 0 and (workdir / "result.json").exists()):
        yield f"ended with {status}: {said[-500:]}"
    if "Traceback" in said:
        yield said
    if saved := re.search(r"saved at step ([\d,]+) of", said):
        step = int(saved[1].replace(",", ""))
        if step and steps_in(workdir / "checkpoints")[-1:] != [step]:
            yield f"step {step} is not saved: {steps_in(workdir / 'checkpoints')}"


def resumed(subjects, case, unbroken):
    """What is wrong with a stopped run that was started again."""
    workdir = subjects.folder / "stopped" / case.name
    process = subjects.start(workdir, *subjects.flags(case.name))
    said = process.communicate(timeout=600)[1]
    return differences(workdir, unbroken) if process.returncode == 0 else [said]


def tried(subjects, cases=CASES, signals=SIGNALS):
    """Every case with every signal; after the last of them the same command goes on to the end."""
    found = []
    for case in cases:
        unbroken, _ = subjects.unbroken(case.name)
        for how in signals:
            one = stop(subjects, case, how, unbroken)
            if one is None:
                print(f"{case.name}, {case.phase}: ended before", flush=True)
                continue
            goes_on = how == signals[-1] and not (case.mode or case.is_large)
            one.wrong.extend(resumed(subjects, case, unbroken) if goes_on else [])
            found.append(one)
            print(f"{case.name}, {case.phase}, {how}: {one.seconds:.1f} s", *one.wrong, flush=True)
    return found


def main():
    with tempfile.TemporaryDirectory() as folder:
        found = tried(Subjects(Path(folder)), signals=sys.argv[1:] or SIGNALS)
    print(f"\n{'asked to stop while':48}{'seconds':>8}{'well / tried':>14}")
    for case in dict.fromkeys(one.case for one in found):
        own = [one for one in found if one.case == case]
        most, well = max(one.seconds for one in own), sum(not one.wrong for one in own)
        print(f"{' '.join([f'{case.phase}: {case.name}', *case.mode[:1]]):48}{most:>8.1f}{well:>9} / {len(own)}")
    sys.exit(any(one.wrong for one in found))


if __name__ == "__main__":
    main()
