"""A model's parameters as a table: a row a module, or a row a tensor."""

from typing import Any

import jax
from ml_collections import ConfigDict

from attention_jax.runs.config import flatten


def table_of(parameters: Any, every_tensor: bool = False) -> str:
    """What a model's modules hold, and what share of all that is; with `every_tensor` shapes and types, one a row."""
    from tabulate import tabulate

    leaves = [(_names(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(parameters)]
    if every_tensor:
        rows = [("/".join(names), "×".join(map(str, leaf.shape)), leaf.dtype, leaf.size) for names, leaf in leaves]
        return tabulate(rows, headers=("tensor", "shape", "dtype", "size"), intfmt=",", tablefmt="presto")
    modules: dict[str, list[int]] = {}
    for names, leaf in leaves:
        modules.setdefault(names[0], []).append(leaf.size)
    total = sum(leaf.size for _, leaf in leaves)
    summed = [(name, len(sizes), sum(sizes), f"{sum(sizes) / total:.1%}") for name, sizes in modules.items()]
    headers = ("module", "tensors", "parameters", "share")
    return tabulate(summed, headers=headers, intfmt=",", tablefmt="presto", colalign=("left", *["right"] * 3))


def layers_of(config: ConfigDict) -> str:
    """How a config's model has its layers: "stacked, rematerialized: dots", or "" where it is neither."""
    flat = flatten(config)
    stacked = ["stacked" for key, value in flat.items() if key.endswith(".stacked") and value]
    remat = [value for key, value in flat.items() if key.endswith(".remat") and value != "none"]
    return ", ".join([*stacked, *(f"rematerialized: {value}" for value in remat)])


def _names(path: tuple) -> list[str]:
    return [str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path]
