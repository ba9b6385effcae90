"""Engines: workers end with the process that started them."""

import os
import signal
import subprocess
import sys
import time

from support import ROOT

PARENT = """
import pathlib, sys
from attention_jax.sweeps.engines import Work, processes
folder = pathlib.Path(sys.argv[1])
worker = "import os, pathlib, time; pathlib.Path(f'pid_{os.getpid()}').touch(); time.sleep(100)"
processes(Work(print, (sys.executable, "-c", worker), folder, folder / "logs", 1, lambda: 0), {"workers": 2})
"""


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_parent_that_is_asked_to_end_ends_its_workers(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(workers := list(tmp_path.glob("pid_*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(timeout=30) == 128 + signal.SIGTERM
    assert len(workers) == 2
    assert not any(is_alive(int(path.name.partition("_")[2])) for path in workers)
