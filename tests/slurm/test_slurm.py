"""The slurm engine on a real SLURM, which `make test-slurm` starts: the same table, and what was preempted goes on."""

import os
import subprocess
import sys
import time

import pytest
from support import ROOT
from sweeper import rows_of

from attention_jax.data.grammar import sentence_pairs

pytestmark = pytest.mark.skipif("SLURM_CONF" not in os.environ, reason="make test-slurm starts a SLURM and runs this")
CONFIG = """
from attention_jax.sweeps.space import grid, product, seeds
from configs.nmt import get_config

def sweep():
    return product(grid("optimizer.learning_rate", (1e-2, 3e-3)), seeds(2))
"""
TINY = {
    "data.min_count": 1,
    "data.validation": 5,
    "data.test": 5,
    "data.max_length": 12,
    "data.buckets": (12,),
    "data.batch_tokens": 96,
    "model.kwargs.embedding": 8,
    "model.kwargs.hidden": 8,
    "train.steps": 600,
    "train.steps_per_call": 2,
    "train.log_every": 20,
    "train.evaluate_every": 300,
    "train.checkpoint_every": 20,
    "train.best_by": "validation.loss",
    "sweep.workers": 2,
    "sweep.minutes": 10,
}


@pytest.fixture
def start(tmp_path):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in sentence_pairs(1, 40)), encoding="utf-8")
    (tmp_path / "mine.py").write_text(CONFIG)
    config = f"--config={tmp_path / 'mine.py'}:bahdanau,tsv"

    def started(engine, **values):
        asked = {**TINY, "data.path": pairs, "sweep.engine": engine, **values}
        flags = [f"--config.{name}={value}" for name, value in asked.items()]
        return subprocess.Popen(
            [sys.executable, "launch.py", config, *flags, "--mode=sweep", f"--workdir={tmp_path / engine}"], cwd=ROOT
        )

    return started


def test_a_job_array_leaves_the_same_table_also_when_it_is_preempted(start, tmp_path):
    assert start("inline").wait() == 0
    process = start("slurm")
    while process.poll() is None and not any((tmp_path / "slurm").glob("cells/*/checkpoints/20")):
        time.sleep(0.1)
    number = next(path.name for path in (tmp_path / "slurm" / "logs").iterdir() if path.name.isdigit())
    subprocess.run(["scancel", "--signal=USR2", number], check=True)  # what SLURM sends before it preempts
    assert process.wait(timeout=400) == 0
    logs = "".join(path.read_text() for path in (tmp_path / "slurm" / "logs").rglob("*_log.*"))
    assert "Requeued" in logs or "requeue" in logs.lower()
    assert rows_of(tmp_path / "slurm" / "table.csv") == rows_of(tmp_path / "inline" / "table.csv")


def test_two_tasks_train_a_cell_together(start, tmp_path):
    short = {"train.steps": 40, "train.evaluate_every": 20, "optimizer.warmup_steps": 10}
    assert start("slurm", **short, **{"sweep.workers": 1, "sweep.tasks_per_node": 2}).wait(timeout=600) == 0
    assert start("inline", **short).wait() == 0
    logs = "".join(path.read_text() for path in (tmp_path / "slurm" / "logs").rglob("*_log.*"))
    assert "Rank 1 is connected" in logs
    for whole, own in zip(*(rows_of(tmp_path / name / "table.csv") for name in ("inline", "slurm")), strict=True):
        assert own["learning_rate"] == whole["learning_rate"]
        assert float(own["validation.loss"]) == pytest.approx(float(whole["validation.loss"]), rel=1e-5)
