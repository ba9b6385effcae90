"""Runs on several devices and in several processes, started as a user starts them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECURRENT = {"model.kwargs.embedding": 32, "model.kwargs.hidden": 32}
TRANSFORMER = {
    **{"model.kwargs.width": 32, "model.kwargs.feed_forward": 64, "model.kwargs.heads": 4, "model.kwargs.kv_heads": 4},
    **{"model.kwargs.encoder_layers": 2, "model.kwargs.decoder_layers": 2},
}
LANGUAGE = {
    **{"model.width": 32, "model.feed_forward": 64, "model.layers": 2, "data.length": 32, "data.batch": 12},
    **{"evaluate.tokens": 256, "evaluate.batch": 12, "generate.tokens": 4},
}
# Small models of each kind, with dropout; the last batch of each length is not full.
MODELS = {
    "bahdanau": ("configs/nmt.py:bahdanau,embedded", RECURRENT),
    "luong_local_p": ("configs/nmt.py:luong_local_p,embedded", RECURRENT),
    "transformer": ("configs/nmt.py:transformer_small,embedded", TRANSFORMER),
    "language_model": ("configs/language_model.py:cpu,characters", LANGUAGE),
}
SHARED = {
    **{"optimizer.dropout": 0.1, "optimizer.warmup_steps": 10, "train.steps_per_call": 4, "train.log_every": 1},
    **{"train.best_by": "train.loss", "train.keep_last": 1},
}


def command(model, workdir, steps, **overrides):
    """The launcher's command for a small model; overrides have "__" for dots."""
    config, own = MODELS[model]
    due = {"train.steps": steps, "train.evaluate_every": steps, "train.checkpoint_every": steps}
    asked = {name.replace("__", "."): value for name, value in overrides.items()}
    values = {**own, **SHARED, **due, **asked}
    flags = [f"--config.{name}={value}" for name, value in values.items()]
    return [sys.executable, "launch.py", f"--config={config}", f"--workdir={workdir}", *flags]


def environment(devices=1):
    """Of a process with so many devices."""
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def run(model, workdir, steps, devices=1, **overrides):
    """One process that has ended well."""
    done = subprocess.run(
        command(model, workdir, steps, **overrides),
        cwd=ROOT,
        env=environment(devices),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def start(model, workdir, steps, processes, devices=1, **overrides):
    """The processes of one run, each a host."""
    address = f"localhost:{free_port()}"
    whole = command(model, workdir, steps, distributed=address, **overrides)
    own = [[*whole, f"--process_id={index}", f"--num_processes={processes}"] for index in range(processes)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(each, cwd=ROOT, env=environment(devices), **pipes) for each in own]


def ended(processes, timeout=300):
    """Each process's status and what it said on standard error."""
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.callback(process.kill)
        return [(process.communicate(timeout=timeout)[1], process.returncode)[::-1] for process in processes]


def losses(workdir):
    """The training loss of every step."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line["train.loss"] for line in lines]


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]
