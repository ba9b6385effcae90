"""Runs whose folder is in an object store: real ones, through gcsfs and TensorStore, in a store of this machine."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from object_store import Server
from support import ROOT

pytest.importorskip("gcsfs", reason="needs gcsfs: pip install gcsfs")

RUN = (
    "--config=configs/nmt.py:bahdanau,embedded",
    *("--config.model.kwargs.embedding=8", "--config.model.kwargs.hidden=8", "--config.optimizer.warmup_steps=4"),
    *("--config.train.steps=24", "--config.train.steps_per_call=4", "--config.train.log_every=8"),
    *("--config.train.evaluate_every=12", "--config.train.checkpoint_every=8", "--config.train.keep_last=2"),
)


SWEEP = """
from attention_jax.sweeps.space import seeds
from configs.nmt import get_config

def sweep():
    return seeds(2)
"""


@pytest.fixture
def store():
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def start(store, *arguments, **streams):
    environment = {**os.environ, **store.environment, "JAX_PLATFORMS": "cpu"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([sys.executable, "launch.py", *arguments], cwd=ROOT, env=environment, text=True, **streams)


def run(store, *arguments, given="", status=0):
    process = start(store, *arguments, stdin=subprocess.PIPE)
    out, err = process.communicate(given, timeout=300)
    assert process.returncode == status, err
    return out, err


def wait_for(store, is_there, process):
    until = time.monotonic() + 200
    while not is_there():
        assert time.monotonic() < until
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


def result_of(content):
    result = json.loads(content)
    return {name: value for name, value in result["test"].items() if "seconds" not in name}


@pytest.mark.slow
def test_a_run_in_a_store_is_killed_goes_on_and_is_what_it_is_on_a_disk(store, tmp_path):
    run(store, *RUN, f"--workdir={tmp_path / 'run'}")
    killed = start(store, *RUN, "--workdir=gs://bucket/lab/run")
    wait_for(store, lambda: "lab/run/checkpoints/8/about.json" in store.objects, killed)
    refusal = "error: gs://bucket/lab/run: in use by process"
    assert refusal in run(store, *RUN, "--workdir=gs://bucket/lab/run", status=1)[1]
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert "lab/run/result.json" not in store.objects
    out, err = run(store, *RUN, "--workdir=gs://bucket/lab/run")
    assert "resuming at step" in err
    assert out.splitlines()[-1] == "gs://bucket/lab/run/result.json"
    kept = store.objects["lab/run/result.json"][1]
    assert result_of(kept) == result_of((tmp_path / "run" / "result.json").read_bytes())
    assert "lab/run/.lease" not in store.objects
    own, there = (
        run(store, "--mode=translate", f"--workdir={folder}", given="she sees the small dog\n" * 3)[0]
        for folder in (tmp_path / "run", "gs://bucket/lab/run")
    )
    assert own == there
    assert own.count("\n") == 3


@pytest.mark.slow
def test_a_sweep_in_a_store_is_done_by_one_process_and_goes_on_after_a_kill(store, tmp_path):
    (tmp_path / "mine.py").write_text(SWEEP)
    own = (f"--config={tmp_path / 'mine.py'}:bahdanau,embedded", *RUN[1:], "--mode=sweep")
    sweep = (*own, "--workdir=gs://bucket/lab/sweep")
    refusal = "config.sweep.engine='processes': one process alone sweeps in an object store: set"
    assert refusal in run(store, *sweep, "--config.sweep.engine=processes", status=1)[1]
    killed = start(store, *sweep)
    wait_for(store, lambda: any("/cells/" in name and name.endswith("about.json") for name in [*store.objects]), killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert "gs://bucket/lab/sweep/report.html" in run(store, *sweep)[0]
    results = [
        result_of(content) for name, (_, content) in store.objects.items() if re.search("/cells/.*/result.json", name)
    ]
    assert len(results) == 2
    run(store, *own, f"--workdir={tmp_path / 'sweep'}")
    here = [result_of(path.read_bytes()) for path in (tmp_path / "sweep").glob("cells/*/result.json")]
    assert sorted(map(str, here)) == sorted(map(str, results))
