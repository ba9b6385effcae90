"""Short runs and sweeps that are killed and stopped: how each is started, what it does now, what it leaves."""

import csv
import functools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from support import ROOT
from sweeper import SMALL, TINY

from attention_jax.data.grammar import sentence_pairs
from attention_jax.runs.config import flatten
from attention_jax.training.storage import read_beside
from tests.faults.phases import STARTING

PHASED = Path(__file__).with_name("phases.py")
ENVIRONMENT = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0", "PYTHONPATH": str(ROOT)}
PAIRS = 400  # sentence pairs
TRANSLATOR = {**TINY, **SMALL["bahdanau"], "train.steps": 36, "evaluate.test_beams": 2}
LANGUAGE = {
    **{"model.layers": 1, "model.width": 16, "model.heads": 2, "model.kv_heads": 2, "model.feed_forward": 16},
    **{"data.length": 16, "data.batch": 4, "data.held_out_test": 0.1, "evaluate.batch": 8, "evaluate.tokens": 64},
    **{"train.steps": 36, "train.steps_per_call": 4, "train.log_every": 6, "train.evaluate_every": 12},
    **{"train.checkpoint_every": 6, "optimizer.warmup_steps": 2, "generate.tokens": 20},
}
SPACE = """
from attention_jax.sweeps.space import grid
from configs.nmt import get_config


def sweep():
    return grid("optimizer.learning_rate", (1e-2, 3e-3))
"""
SWEPT = {**TRANSLATOR, "train.steps": 12, "sweep.workers": 2}
NAMES = ("translator", "language model", "sweep inline", "sweep processes")
# What is a clock's in metrics.jsonl and result.json, or says who ran it from where.
CLOCK = ("seconds", "_per_second", "command", "clock", "mfu", "goodput", "code.")


class Subjects:
    """The runs of `NAMES` in a folder, over a small corpus and text of their own."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "phases").mkdir(parents=True)
        pairs = list(sentence_pairs(1, PAIRS))
        (folder / "pairs.txt").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))
        (folder / "text.txt").write_text("".join(f"{pair.source}\n" for pair in pairs))
        (folder / "space.py").write_text(SPACE)

    def flags(self, name):
        """The flags that start a run or sweep, or start it again."""
        text, pairs, space = (self.folder / file for file in ("text.txt", "pairs.txt", "space.py"))
        engine = {"sweep.engine": name.removeprefix("sweep ")}
        config, values, mode = {
            "translator": ("configs/nmt.py:bahdanau,tsv", {**TRANSLATOR, "data.path": pairs}, ()),
            "language model": ("configs/language_model.py", {**LANGUAGE, "data.path": text}, ()),
        }.get(name, (f"{space}:bahdanau,tsv", {**SWEPT, **engine, "data.path": pairs}, ("--mode=sweep",)))
        return [f"--config={config}", *(f"--config.{key}={value}" for key, value in values.items()), *mode]

    def start(self, workdir, *flags, stdin=subprocess.DEVNULL):
        """A process that is still running."""
        command = [sys.executable, PHASED, self.folder / "phases", *flags, f"--workdir={workdir}"]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "stdin": stdin}
        return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, **pipes)

    def large(self, name, times):
        """A corpus or text of so many times the small one."""
        file = self.folder / ("text.txt" if name == "language model" else "pairs.txt")
        path = file.with_name(f"large_{file.name}")
        if not path.exists():
            path.write_text(file.read_text() * times)
        return path

    def processes(self):
        """The numbers of all processes that were started so far."""
        return [int(path.name) for path in (self.folder / "phases").iterdir()]

    def phase(self, process):
        """What a process does, or did when it was killed."""
        file = self.folder / "phases" / str(process.pid)
        return (file.read_text().strip() if file.exists() else "") or STARTING

    @functools.cache  # noqa: B019  # as long as the folder that it is in
    def unbroken(self, name):
        """A run that nothing disturbs, and the seconds that it takes."""
        workdir, started = self.folder / "unbroken" / name, time.monotonic()
        process = self.start(workdir, *self.flags(name))
        said = process.communicate(timeout=600)[1]
        assert process.returncode == 0, said
        return workdir, time.monotonic() - started


def is_alive(pid):
    """Whether a process runs, and is not just waited for."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def wait_for(subjects, process, phase, timeout=120):
    """Whether a process comes to a phase before it ends."""
    deadline = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        if subjects.phase(process) == phase:
            return True
        time.sleep(0.003)
    return False


def half_written(workdir):
    """What in a folder that was just left can be taken for whole and is not."""
    wrong = []
    for path in (*workdir.rglob("config.json"), *workdir.rglob("result.json"), *workdir.rglob("plan.json")):
        try:
            json.loads(path.read_bytes())
        except ValueError:
            wrong.append(f"{path}: half a file")
    for path in (path for path in workdir.rglob("checkpoints/[0-9]*") if path.name.isdecimal()):
        try:
            read_beside(path)
        except (OSError, ValueError) as error:
            wrong.append(f"{path}: {error}")
    return wrong


def differences(one, other):
    """In what two folders of finished runs or sweeps differ, clocks apart."""
    runs, others = (sorted(path.parent.relative_to(top) for path in top.rglob("metrics.jsonl")) for top in (one, other))
    wrong = [f"{path}: left behind" for path in one.rglob("*") if _is_left(path)]
    if runs != others:
        return [*wrong, f"runs {runs}, not {others}"]
    for run in runs:
        wrong += [f"{run}: {what}" for what in _of_run(one / run, other / run)]
    if (other / "table.csv").exists() and _rows(one) != _rows(other):
        wrong.append("table.csv differs")
    return wrong


def _is_left(path):
    return path.name.startswith(("partial-", "removed-")) or path.name.endswith((".partial", ".unreadable"))


def _of_run(one, other):
    for name, read in {"metrics.jsonl": _metrics, "result.json": _result}.items():
        if read(one / name) != read(other / name):
            yield f"{name} differs"
    for path in other.glob("predictions.*.txt"):
        if (one / path.name).read_bytes() != path.read_bytes():
            yield f"{path.name} differs"
    trees, others = (sorted(_trees(run)) for run in (one, other))
    if trees != others:
        yield f"checkpoints {trees}, not {others}"
    for tree in {*trees} & {*others}:
        if not _is_same(_arrays(one / tree), _arrays(other / tree)):
            yield f"{tree}: other parameters"


def _metrics(path):
    return [_without_clock(json.loads(line)) for line in path.read_text().splitlines()]


def _result(path):
    return _without_clock(flatten(json.loads(path.read_text())))


def _without_clock(values):
    return {name: value for name, value in values.items() if not any(word in name for word in CLOCK)}


def _rows(sweep):
    with open(sweep / "table.csv", encoding="utf-8") as file:
        return [_without_clock(row) for row in csv.DictReader(file)]


def _trees(run):
    """The checkpoints of a run and its best variables."""
    found = (path for pattern in ("checkpoints/*", "best/*/*") for path in run.glob(pattern))
    return [str(path.relative_to(run)) for path in found if path.name.isdecimal()]


def _arrays(folder):
    import jax
    import orbax.checkpoint as ocp

    return jax.tree.leaves(ocp.StandardCheckpointer().restore(folder.absolute() / "default"))


def _is_same(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def shares(rows):
    """A table of (phase, how it went): {phase: (survived, tried)}."""
    found = {}
    for phase, survived in rows:
        before = found.get(phase, (0, 0))
        found[phase] = (before[0] + survived, before[1] + 1)
    return found


def dice(seed):
    return random.Random(seed)
