"""A training step compiled for a machine, also for one that is not here: whether it fits, and what devices send."""

import math
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.launcher.description import Lines, assumed, in_words, table
from attention_jax.runs.machine import free_memory
from attention_jax.training.collectives import traffic
from attention_jax.training.compiling import compiled
from attention_jax.training.description import Description, Layout
from attention_jax.training.peaks import memory_bytes
from attention_jax.training.placement import bytes_a_device, shardings_of
from attention_jax.training.topology import devices_of, programs_for

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Compilation(NamedTuple):
    """What is told of a compiled step; `refusal` says that it does not fit, and is "" where it does."""

    text: str
    refusal: str


class Memory(NamedTuple):
    """Bytes of a device that a program needs at once: in words, and their sum."""

    told: str
    total: float


def compile_step(config: ConfigDict, describe: Callable[[ConfigDict], Description], topology: str) -> Compilation:
    """Compile a step for the slice of TPUs that `topology` names, or for this machine where it is "".

    Raises UserError where nothing is trained step by step, and for a mesh that the machine has not.
    """
    devices = devices_of(topology)  # first: it says where JAX computes
    with programs_for(devices):
        return _compile_step(config, describe(config), topology, devices)


def _compile_step(config: ConfigDict, description: Description, topology: str, devices: list[Any]) -> Compilation:
    if description.layout is None:
        raise UserError(f"config.experiment={config.experiment!r}: has no training step to compile.")
    mesh, kind = description.layout.mesh(devices), devices[0].device_kind
    lines = [("machine", f"{topology or 'this one'}: {len(devices)} × {kind}"), *_asked(config, description, mesh)]
    started = time.perf_counter()
    memory, program = _compiled(description, description.layout, mesh)
    limit = memory_bytes(kind) or free_memory()
    verdict = f"{_size(memory.total)} a device, which has {_size(limit)}"
    fits = program is not None and memory.total <= limit
    lines += [
        ("memory a device", memory.told),
        ("compiled in", f"{time.perf_counter() - started:,.0f} s"),
        ("fits", f"{'yes' if fits else 'no'}: {verdict}"),
    ]
    text = "\n\n".join([in_words(lines), *([_sent(program)] if program and mesh.size > 1 else [])])
    return Compilation(text, "" if fits else f"does not fit: {verdict}. {_advice()}")


def _asked(config: ConfigDict, description: Description, mesh: Mesh) -> Lines:
    """What is compiled."""
    layout: Any = description.layout
    state, batch, _ = layout.arguments(mesh)
    held = bytes_a_device(state, layout.blueprint.partitions(mesh), mesh)
    own, laid = (jax.tree.leaves(tree)[0].shape for tree in (layout.batch, batch))
    padding = f", {laid[0] - own[0]:,} of them padding: the batch has {own[0]:,}" * (laid != own)
    flops = description.model_flops
    return [
        ("mesh", " × ".join(f"{axis} {size}" for axis, size in mesh.shape.items())),
        *assumed(config),
        ("batch", f"{laid[0]:,} rows{padding}"),
        ("parameters", f"{description.size:,}"),
        ("state a device", _size(held)),
        ("model FLOPs", f"{flops:.4g} a step, {flops / mesh.size:.4g} a device"),
    ]


def _compiled(description: Description, layout: Layout, mesh: Mesh) -> tuple[Memory, Any]:
    """What the compiled step needs, and its program; None where the compiler found no way to make it fit."""
    arguments = layout.arguments(mesh)
    with jax.set_mesh(mesh):
        own = shardings_of(arguments[0])
        lowered = jax.jit(description.step, donate_argnums=0, out_shardings=(own, None)).lower(*arguments)
        try:
            program = compiled(lowered)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return _exhausted(str(error)), None
    description.inspect(program)
    return _memory(program.memory_analysis()), program


def _memory(found: Any) -> Memory:
    parts = {
        "arguments": found.argument_size_in_bytes,
        "outputs": found.output_size_in_bytes,
        "temporaries": found.temp_size_in_bytes,
    }
    told = " + ".join(f"{name} {_size(size)}" for name, size in parts.items())
    reused = found.alias_size_in_bytes
    return Memory(f"{told} − outputs in arguments' place {_size(reused)}", sum(parts.values()) - reused)


def _exhausted(message: str) -> Memory:
    used = re.search(r"(?:Used |\()([\d.]+)([KMGT])", message)
    told = re.search(r"Ran out of memory.*?(?= HLO module|\n|$)", message)
    total = float(used[1]) * UNITS[used[2]] if used else math.inf
    return Memory(f"refused by the compiler: {told[0] if told else message.splitlines()[0]}", total)


def _size(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def _sent(program: Any) -> str:
    """A table of what a device sends and gets in a step."""
    try:
        found = traffic(program.as_text())
    except jax.errors.JaxRuntimeError as error:
        return (
            f"what is sent cannot be read, for libtpu and jaxlib are not of one release: {str(error).splitlines()[0]}"
        )
    rows = [(kind, of_kind.times, of_kind.bytes / 2**20) for kind, of_kind in found.items() if of_kind.times]
    return table(rows, ("collective", "a step", "MiB a step and device"), floatfmt=",.1f")


def _advice() -> str:
    return (
        "Spread the state and the batch over more devices (--config.mesh.fsdp, a larger --topology), cut the batch "
        "into more parts (--config.train.accumulate), or let layers compute again (the model's remat='full')."
    )
