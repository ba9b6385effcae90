"""A training step in words: a table of parameters, where they lie, and what the step costs."""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from attention_jax.runs.config import flatten
from attention_jax.training.description import Description
from attention_jax.training.placement import bytes_a_device, named_leaves

Lines = list[tuple[str, str]]


def describe_step(config: ConfigDict, description: Description, every_tensor: bool) -> str:
    """The table, and the memory and FLOPs of a step; on more than one device, what each of them holds."""
    layout, arguments, specs, lines = description.layout, description.arguments, None, []
    context: Any = contextlib.nullcontext()
    if layout is not None:
        mesh = layout.mesh()
        context, arguments = jax.set_mesh(mesh), layout.arguments(mesh)
        placed = layout.blueprint.partitions(mesh)
        specs = placed.variables["params"]
        held = bytes_a_device(arguments[0], placed, mesh)
        lines = [
            ("mesh", " × ".join(f"{axis} {size}" for axis, size in mesh.shape.items())),
            ("state a device", f"{held / 2**20:,.1f} MiB"),
        ]
    with context:
        spent = description.cost(*arguments)
    layers = layers_of(config)
    lines = [*([("layers", layers)] if layers else []), ("parameters", f"{description.size:,}"), *lines]
    lines += [("memory a step", f"{spent.bytes / 2**20:,.1f} MiB"), ("FLOPs a step", f"{spent.flops:,.0f}")]
    lines += _cache(description)
    return f"{table_of(description.parameters, specs, every_tensor)}\n\n{in_words([*assumed(config), *lines])}"


def _cache(description: Description) -> Lines:
    """What a model that reads token by token holds of a text, where it has layers that hold anything."""
    by_token, by_text = description.held() if description.held else (0, 0)
    told = [f"{by_token:,} bytes a token"] * bool(by_token) + [f"{by_text:,} bytes a text"] * bool(by_text)
    return [("cache", ", ".join(told))] if told else []


def in_words(lines: Lines) -> str:
    """A line each of a name and what is told."""
    return "\n".join(f"{name:<16}  {value}" for name, value in lines)


def assumed(config: ConfigDict) -> Lines:
    """What is assumed of data that are not read: the vocabulary, where there is one."""
    if "data" not in config or "vocabulary" not in config.data:
        return []
    return [("vocabulary", f"{config.data.vocabulary:,}: config.data.vocabulary, for no data are read")]


def table(rows: Sequence[tuple], headers: Sequence[str], **options: Any) -> str:
    """A table of text."""
    from tabulate import tabulate

    return tabulate(rows, headers=headers, intfmt=",", tablefmt="presto", **options)


def table_of(parameters: Any, specs: Any = None, every_tensor: bool = False) -> str:
    """What a model's modules hold, what share of all that is, and which axes of the mesh it is spread over.

    With `every_tensor` shapes and types, one a row, and the partition: `-` is an axis that is whole. Without `specs`
    nothing is spread.
    """
    partitions = jax.tree.leaves(specs) or [()] * len(jax.tree.leaves(parameters))
    leaves = [(name, leaf, spec) for (name, leaf), spec in zip(named_leaves(parameters), partitions, strict=True)]
    if every_tensor:
        rows = [(name, "×".join(map(str, x.shape)), _axes(spec), x.dtype, x.size) for name, x, spec in leaves]
        return table(rows, ("tensor", "shape", "over", "dtype", "size"))
    modules: dict[str, list] = {}
    for name, leaf, spec in leaves:
        modules.setdefault(name.partition("/")[0], []).append((leaf.size, spec))
    total = sum(leaf.size for _, leaf, _ in leaves)
    summed = [(name, len(held), size, f"{size / total:.1%}", over) for name, held, size, over in _summed(modules)]
    headers = ("module", "tensors", "parameters", "share", "over")
    return table(summed, headers, colalign=("left", *["right"] * 3, "left"))


def layers_of(config: ConfigDict) -> str:
    """How a config's model has its layers: "stacked, rematerialized: dots", or "" where it is neither."""
    flat = flatten(config)
    stacked = ["stacked" for key, value in flat.items() if key.endswith(".stacked") and value]
    remat = [value for key, value in flat.items() if key.endswith(".remat") and value != "none"]
    return ", ".join([*stacked, *(f"rematerialized: {value}" for value in remat)])


def _summed(modules: dict[str, list]) -> list[tuple[str, list, int, str]]:
    """Each module's tensors, their size, and the axes of the mesh that any of them is spread over."""
    rows = []
    for name, held in modules.items():
        over = sorted({axis for _, spec in held for part in spec for axis in _names(part)})
        rows.append((name, held, sum(size for size, _ in held), ", ".join(over) or "whole"))
    return rows


def _axes(spec: Any) -> str:
    return "×".join("+".join(_names(part)) or "-" for part in spec) if any(map(_names, spec)) else "whole"


def _names(part: Any) -> tuple[str, ...]:
    return (part,) if isinstance(part, str) else part or ()
