"""Launching the real thing, as a user does."""

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from support import ROOT
from sweeper import Sweeper

from attention_jax.data.grammar import sentence_pairs

ENVIRONMENT = {
    **os.environ,
    "XLA_FLAGS": "--xla_backend_optimization_level=0",  # a tiny run spends its time compiling
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # which the launcher would start itself anew for
}
TINY = {
    "data.min_count": 1,
    "data.validation": 5,
    "data.test": 5,
    "data.max_length": 12,
    "data.buckets": (12,),
    "data.batch_tokens": 96,
    "model.kwargs.embedding": 8,
    "model.kwargs.hidden": 8,
    "model.kwargs.layers": 1,
    "optimizer.warmup_steps": 2,
    "train.steps": 40,
    "train.steps_per_call": 2,
    "train.log_every": 4,
    "train.evaluate_every": 20,
    "train.checkpoint_every": 8,
}


def flags_of(overrides):
    return [f"--config.{name}={value}" for name, value in overrides.items()]


class Ended(NamedTuple):
    """A process that has ended."""

    returncode: int
    out: str
    err: str


@functools.cache
def launches():
    """The process that the launcher's runs are forks of; it ends when its input does, with this one."""
    command = [sys.executable, Path(__file__).with_name("launches.py")]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


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
        """A process that is still running."""
        return subprocess.Popen(
            self.command(*args, **kwargs),
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args, stdin="", **kwargs):
        """A process that has ended: a fork of one that has imported everything. It is given `stdin` to read."""
        with tempfile.TemporaryDirectory() as folder:
            given, out, err = (Path(folder) / name for name in ("in", "out", "err"))
            given.write_text(stdin, encoding="utf-8")
            files = {"stdin": str(given), "out": str(out), "err": str(err)}
            request = {"argv": self.command(*args, **kwargs)[1:], **files}
            launches().stdin.write(json.dumps(request, default=str) + "\n")
            launches().stdin.flush()
            status = int(launches().stdout.readline())
            return Ended(status, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))

    def train_long(self, *args, **kwargs):
        """A process that has ended, of programs that are optimised, as they are for users."""
        environment = {name: value for name, value in ENVIRONMENT.items() if name != "XLA_FLAGS"}
        command = self.command(*args, **kwargs)
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def interrupt(self, how, workdir, at_step, *, saved=False, **kwargs):
        """Start a run and send it a signal when its metrics reach a step, and a checkpoint is there if it is to be.

        The run must not have ended before.
        """
        process = self.start(workdir, **kwargs)
        metrics = workdir / "metrics.jsonl"
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and process.poll() is None:
            is_saved = not saved or any((workdir / "checkpoints").glob("[0-9]*"))
            if is_saved and metrics.exists() and f'"step": {at_step},' in metrics.read_text():
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


@pytest.fixture
def sweeper(tmp_path, capsys):
    return Sweeper(tmp_path)
