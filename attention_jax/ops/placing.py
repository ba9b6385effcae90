"""Where activations lie on a mesh that is set: rows over its axes `data` and `fsdp`, features over `tensor`.

Without them the compiler guesses from where parameters lie, and may bring activations together that need not be. Where
no mesh with these axes is set, or it is of one device, every function returns its argument.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Shaped

ROWS = ("data", "fsdp")  # what the rows of a member's batch are spread over
FEATURES = "tensor"


def over_rows(tree: Any) -> Any:
    """Arrays `[rows, …]` with their rows over `ROWS`, all other axes whole."""
    return tree if _mesh() is None else jax.lax.with_sharding_constraint(tree, PartitionSpec(ROWS))


def over_features(x: Shaped[Array, "rows *others"], axis: int = -1) -> Shaped[Array, "rows *others"]:
    """The same with one more axis over `tensor`, if it has an item for each device of that."""
    mesh = _mesh()
    if mesh is None:
        return x
    axes: list[Any] = [ROWS, *[None] * (x.ndim - 1)]
    if x.shape[axis] >= mesh.shape[FEATURES]:
        axes[axis] = FEATURES
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))


def by_rows_and_heads(function: Callable[..., Array], query: Array, *others: Array) -> Array:
    """`function(query, *others)`, which each device computes for rows and heads of its own: for what no compiler cuts.

    Arrays are `[rows, heads, …]`, and so is the result; those with two axes are `[rows, …]`. Rows and heads are spread
    where they divide; an axis of one row is everyone's.
    """
    mesh = _mesh()
    if mesh is None:
        return function(query, *others)
    rows = ROWS if query.shape[0] % math.prod(mesh.shape[axis] for axis in ROWS) == 0 else None
    heads = FEATURES if query.shape[1] % mesh.shape[FEATURES] == 0 else None
    specs = [
        PartitionSpec(rows if array.shape[0] == query.shape[0] else None, *[heads] * (array.ndim > 2))
        for array in (query, *others)
    ]
    return jax.shard_map(function, in_specs=tuple(specs), out_specs=specs[0], check_vma=False)(query, *others)


def _mesh() -> Any:
    """The mesh that is set, if it can lay out activations."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return mesh if mesh.size > 1 and all(kinds.get(axis) == AxisType.Auto for axis in (*ROWS, FEATURES)) else None
