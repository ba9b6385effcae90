"""Engines: workers end with the process that started them."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import ROOT

PARENT = """
import pathlib, sys
from attention_jax.launcher.messages import guarded
from attention_jax.sweeps.engines import Work, processes
folder = pathlib.Path(sys.argv[1])
worker = "import os, pathlib, time; pathlib.Path(f'pid_{os.getpid()}').touch(); time.sleep(100)"
work = Work(print, (sys.executable, "-c", worker), folder, folder / "logs", 1, lambda: 0)
guarded(lambda argv: processes(work, {"workers": 2}), [])
"""


def is_alive(pid):
    """Whether a process runs; one that has ended may wait for its parent to look."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("how", "status"), [("SIGTERM", 143), ("SIGHUP", 143), ("SIGUSR2", 143), ("SIGINT", 130)])
def test_a_parent_that_is_asked_to_end_ends_its_workers(tmp_path, how, status):
    parent, workers = started(tmp_path)
    parent.send_signal(getattr(signal, how))
    assert parent.wait(timeout=30) == status
    assert not any(map(is_alive, workers))


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not there")
def test_workers_are_asked_to_stop_where_their_parent_is_killed(tmp_path):
    parent, workers = started(tmp_path)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, workers))


def started(tmp_path):
    """A process that awaits workers, and their numbers."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(workers := list(tmp_path.glob("pid_*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers) == 2
    return parent, [int(path.name.partition("_")[2]) for path in workers]
