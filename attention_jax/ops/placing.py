"""Where activations lie on a mesh that is set: rows over its axes `data` and `fsdp`, tokens over `context`, features
over `tensor`.

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
CONTEXT = "context"  # what the tokens of a text are spread over


def over_rows(tree: Any) -> Any:
    """Arrays `[rows, tokens, …]` with their rows over `ROWS`, tokens over `context` where they divide, others whole."""
    mesh = _mesh()
    if mesh is None:
        return tree
    spread = lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec(*_axes(mesh, x, 1)))  # noqa: E731
    return jax.tree.map(spread, tree)


def over_features(x: Shaped[Array, "rows *others tokens f"], axis: int = -1) -> Shaped[Array, "rows *others tokens f"]:
    """The same for `[rows, …, tokens, features]`, and one more axis over `tensor`, if each device has an item."""
    mesh = _mesh()
    if mesh is None:
        return x
    axes = _axes(mesh, x, x.ndim - 2)
    if x.shape[axis] >= mesh.shape[FEATURES]:
        axes[axis] = FEATURES
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))


def parts_of_a_text() -> int:
    """How many devices of the mesh that is set, if any, the tokens of a text lie over."""
    mesh = _mesh()
    return 1 if mesh is None else mesh.shape[CONTEXT]


def _axes(mesh: Any, x: Array, tokens: int) -> list[Any]:
    """The mesh's axes for an array whose first axis is of rows, and one of whose others is of tokens."""
    axes: list[Any] = [ROWS, *[None] * (x.ndim - 1)]
    if 0 < tokens < x.ndim and mesh.shape[CONTEXT] > 1 and x.shape[tokens] % mesh.shape[CONTEXT] == 0:
        axes[tokens] = CONTEXT
    return axes


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
    return (
        mesh if mesh.size > 1 and all(kinds.get(axis) == AxisType.Auto for axis in (*ROWS, FEATURES, CONTEXT)) else None
    )
