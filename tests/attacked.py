"""Launching in this process, on a copy of a finished run one of whose files was damaged."""

import contextlib
import io
import shutil
import time
from typing import NamedTuple

from attention_jax.launcher import experiments, stored
from attention_jax.launcher.messages import guarded
from attention_jax.launcher.modes import MODES
from attention_jax.runs.experiment import Request

DEEP = b"[" * 100_000 + b"]" * 100_000


class Ended(NamedTuple):
    """What a mode wrote, and the one line with which it refused; "" where it did not."""

    out: str
    refusal: str


def launch(workdir, mode, given="-"):
    """A mode of the run in a folder, with the run's own config. Any error but a refusal is raised."""

    def run(argv):
        config = stored.read(workdir)
        request = Request(config, workdir, time.perf_counter(), False, input=str(given))
        MODES[mode](experiments.load(config.experiment), request)

    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            guarded(run, [])
        except SystemExit as end:
            status = end.code
    if not status:
        return Ended(out.getvalue(), "")
    (refusal,) = (line for line in err.getvalue().splitlines() if line.startswith("error: "))
    assert (status, out.getvalue()) == (1, "")
    return Ended("", refusal)


def copied(run, folder):
    """A copy of a run."""
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(run, folder, symlinks=True)
