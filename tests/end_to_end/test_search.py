"""A search as a user starts it: killed, resumed, reported."""

import functools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support import ROOT
from sweeper import SMALL, TINY

pytest.importorskip("optuna", reason='needs Optuna: pip install "attention_jax[search]"')

CONFIG = """
from attention_jax.sweeps.space import choice, log_uniform
from configs.nmt import get_config


def search():
    return {"optimizer.learning_rate": log_uniform(1e-3, 1e-1), "optimizer.warmup_steps": choice((2, 4))}
"""
SEARCH = {"trials": 6, "batch": 3, "reporting_seeds": 2, "sampler": "tpe", "pruner": "halving"}


def started(sweeper, workdir, *flags, config=True):
    (sweeper.folder / "mine.py").write_text(CONFIG)
    values = {**TINY, **SMALL["bahdanau"], "data.path": sweeper.pairs}
    values |= {f"search.{key}": value for key, value in SEARCH.items()}
    asked = [f"--config={sweeper.folder / 'mine.py'}:bahdanau,tsv", "--mode=search"]
    asked += [f"--config.{name}={value}" for name, value in values.items()]
    return subprocess.Popen(
        [sys.executable, "launch.py", *(asked if config else ()), f"--workdir={sweeper.folder / workdir}", *flags],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


@pytest.mark.slow
def test_killed_while_it_trains_and_started_again_a_search_gives_the_same_table(sweeper):
    start = functools.partial(started, sweeper)
    out = ended(start("whole"))
    assert out.startswith("A search by tpe, pruned by halving, 6 trials in batches of 3: ")
    for least in (1, 4):  # cells that are done: in the first batch, and in the second
        process = start("cut")
        while process.poll() is None and len(list((sweeper.folder / "cut").glob("cells/*/result.json"))) < least:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = {path: path.stat().st_mtime_ns for path in (sweeper.folder / "cut").glob("cells/*/result.json")}
    assert len(done) >= 4
    ended(start("cut", config=False))  # the folder says what it is
    assert all(path.stat().st_mtime_ns == at for path, at in done.items())
    assert sweeper.table("cut") == sweeper.table("whole")
    whole, cut = (json.loads((sweeper.folder / name / "result.json").read_text()) for name in ("whole", "cut"))
    assert whole["search"] == cut["search"]
    dropped = [cell for cell in whole["cells"] if cell["status"] == "dropped"]
    assert dropped
    assert {cell["seed"] for cell in whole["cells"]} == {0, 1, 2}
    page = sweeper.folder / "cut" / "report.html"
    before = page.read_text()
    ended(start("cut", "--mode=report", config=False))
    assert page.read_text() == before
