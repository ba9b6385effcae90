"""How cost grows: with tokens, rows, layers, members of a population, and devices."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from attention_jax.tasks.benchmark.attention import with_gradient
from attention_jax.tasks.benchmark.cases import changed
from attention_jax.tasks.benchmark.rounds import Growth
from attention_jax.tasks.benchmark.tools import Tools
from attention_jax.tasks.benchmark.training import Training, prepare
from attention_jax.tasks.timing import least_seconds
from attention_jax.training.collectives import traffic
from attention_jax.training.cost import cost, flops
from attention_jax.training.description import Layout
from attention_jax.training.placement import MESH, REST

BYTES = {"reference": 2, "chunked": 1}  # what memory is expected to grow by with tokens
ONE = dict.fromkeys(MESH, 1)
LAID = ("data", "fsdp")  # axes of the mesh: gradients are sent, or parameters and gradients


def measure(config: ConfigDict, tools: Tools) -> Iterator[Growth]:
    """Every growth of `config.scaling`."""
    del tools
    asked = config.scaling
    yield from _of_tokens(asked, config.rounds)
    yield from _of_steps(config, "rows", asked.rows, lambda rows: {"batch": rows, "pairs": rows})
    yield from _of_steps(
        config, "layers", asked.layers, lambda n: {f"model.kwargs.{side}_layers": n for side in ("encoder", "decoder")}
    )
    yield _of_members(config)
    yield from _of_devices(config)


def _of_tokens(asked: ConfigDict, rounds: int) -> Iterator[Growth]:
    for backend, expected in BYTES.items():
        gradient, seconds, held = with_gradient(backend, is_causal=False), [], []
        for length in asked.tokens:
            shape = (asked.heads, length, asked.features)
            arrays = [jax.random.normal(jax.random.key(seed), shape) for seed in range(3)]
            seconds.append(least_seconds(jax.jit(gradient), *arrays, repeats=rounds))
            held.append(float(cost(gradient, *arrays).bytes))
        what = f"{backend} attention, forward and gradient"
        yield Growth("scaling", f"{what}: seconds", "tokens", [*asked.tokens], seconds, 2)
        yield Growth("scaling", f"{what}: bytes", "tokens", [*asked.tokens], held, expected)


def _of_steps(
    config: ConfigDict, of: str, sizes: Sequence[int], changes: Callable[[int], Mapping[str, Any]]
) -> Iterator[Growth]:
    seconds, counted = [], []
    for size in sizes:
        case = changed(config.scaling.case, changes(size))
        training = prepare(case, config.optimizer)
        seconds.append(_seconds_of_step(training, case, config.rounds))
        counted.append(flops(training.step, *training.shapes(case.batch)))
    yield Growth("scaling", "a training step: seconds", of, [*sizes], seconds, 1)
    yield Growth("scaling", "a training step: FLOPs", of, [*sizes], counted, 1)


def _of_members(config: ConfigDict) -> Growth:
    case, sizes = config.scaling.case, config.scaling.members
    trainings = (prepare(case, config.optimizer, "vmap", members) for members in sizes)
    seconds = [_seconds_of_step(training, case, config.rounds) for training in trainings]
    return Growth("scaling", "a training step of all members: seconds", "members", [*sizes], seconds, 1)


def _of_devices(config: ConfigDict) -> Iterator[Growth]:
    asked, most = config.scaling, max(config.scaling.devices)
    forced = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{forced} --xla_force_host_platform_device_count={most}"  # of the new process
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            plain = asked.case.to_dict(), config.optimizer.to_dict(), [*asked.devices]
            sent = {axis: process.submit(bytes_sent, axis, *plain).result() for axis in LAID}
    finally:
        os.environ["XLA_FLAGS"] = forced
    for axis, values in sent.items():
        what = f"a training step over {axis}: bytes of collectives' arrays"
        yield Growth("scaling", what, "devices", [*asked.devices], values, 0)


def bytes_sent(axis: str, case: dict, optimizer: dict, counts: Sequence[int]) -> list[float]:
    """The bytes of the arrays that a compiled step reduces or gathers on a device, by how many devices an axis has.

    A ring of n devices sends 2 (n - 1) / n times those that it reduces, and (n - 1) / n times those that it gathers.
    """
    settings = ConfigDict(case)
    training = prepare(settings, ConfigDict(optimizer))
    found = []
    for count in counts:
        layout = Layout(training.blueprint, training.batch(settings.batch), training.hyper, ONE | {axis: REST}, 1)
        mesh = layout.mesh(jax.devices()[:count])
        with jax.set_mesh(mesh):
            program = jax.jit(training.step).lower(*layout.arguments(mesh)).compile()
        found.append(float(sum(one.bytes for one in traffic(program.as_text() or "").values())))
    return found


def _seconds_of_step(training: Training, case: ConfigDict, repeats: int) -> float:
    packed, rows = training.create(), np.arange(case.batch, dtype=np.int32)[None]

    def step():
        nonlocal packed
        packed = training.call(packed, rows)

    return least_seconds(step, repeats=repeats)
