"""Launching the real thing, as a user does."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support import ROOT

from attention_jax.data.grammar import sentence_pairs

TINY = {
    "data.min_count": 1,
    "data.validation": 5,
    "data.test": 5,
    "data.max_length": 12,
    "data.buckets": (8, 12),
    "data.batch_tokens": 96,
    "model.kwargs.embedding": 8,
    "model.kwargs.hidden": 8,
    "train.steps": 40,
    "train.steps_per_call": 2,
    "train.log_every": 4,
    "train.evaluate_every": 20,
    "train.checkpoint_every": 8,
}


def flags_of(overrides):
    return [f"--config.{name}={value}" for name, value in overrides.items()]


class Launcher:
    """`python launch.py …` on a tiny corpus of its own."""

    def __init__(self, folder):
        self.pairs = folder / "pairs.txt"
        lines = (f"{pair.source}\t{pair.target}\n" for pair in sentence_pairs(1, 60))
        self.pairs.write_text("".join(lines), encoding="utf-8")

    def command(self, workdir, *flags, config="configs/nmt.py:bahdanau,tsv", **overrides):
        named = {"data.path": self.pairs, **TINY} if config and config.endswith(",tsv") else {}
        values = {**named, **{name.replace("__", "."): value for name, value in overrides.items()}}
        start = [f"--config={config}", *flags_of(values)] if config else []
        return [sys.executable, "launch.py", *start, f"--workdir={workdir}", *flags]

    def start(self, *args, **kwargs):
        flags = "--xla_backend_optimization_level=0"  # a tiny run spends its time compiling
        environment = {**os.environ, "XLA_FLAGS": flags, "JAX_NUMPY_RANK_PROMOTION": "raise"}
        return subprocess.Popen(
            self.command(*args, **kwargs),
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args, **kwargs):
        process = self.start(*args, **kwargs)
        process.out, process.err = process.communicate(timeout=300)
        return process

    def interrupt(self, how, workdir, at_step, **kwargs):
        """Start a run and send it a signal when its metrics reach a step; the run must not have ended before."""
        process = self.start(workdir, **kwargs)
        metrics = workdir / "metrics.jsonl"
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and process.poll() is None:
            if metrics.exists() and f'"step": {at_step},' in metrics.read_text():
                break
            time.sleep(0.01)
        assert process.poll() is None, process.communicate()
        assert metrics.exists()
        process.send_signal(getattr(signal, how))
        process.out, process.err = process.communicate(timeout=100)
        return process


@pytest.fixture
def launcher(tmp_path):
    return Launcher(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished tiny run that several tests read, and its launcher."""
    folder = tmp_path_factory.mktemp("finished")
    launcher = Launcher(folder)
    process = launcher.run(folder / "run")
    assert process.returncode == 0, process.err
    return launcher, folder / "run", process
