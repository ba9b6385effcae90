"""Batches on their way to the devices: each host computes all rows of a step, and reads those that its devices need."""

import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from attention_jax import hosts
from attention_jax.ops.placing import ROWS
from attention_jax.training.placement import place

NO_ROW = -1  # stands for a row of padding


class Batches(NamedTuple):
    """The batches of consecutive steps: rows of a table that stays on the device, or rows that are read when needed.

    `read` gives the arrays of any rows, with the rows' axes first.
    """

    rows: Int[np.ndarray, "steps batch"]
    table: Any = None
    read: Callable[[Int[np.ndarray, "*rows"]], Any] | None = None


def shapes_of(batches: Batches) -> Any:
    """The shapes of one step's batch."""
    if batches.read is None:
        column = lambda leaf: jax.ShapeDtypeStruct((batches.rows.shape[1], *leaf.shape[1:]), leaf.dtype)  # noqa: E731
        return jax.tree.map(column, batches.table)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batches.read(batches.rows[0]))


def shapes_of_step(table: Any, rows: Any) -> Any:
    """The shapes of one step's batch, of what `Feed` gives."""
    first = (lambda leaf: leaf.shape[1:]) if rows is None else (lambda leaf: (rows.shape[1], *leaf.shape[1:]))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(first(leaf), leaf.dtype), table)


class Feed:
    """Lays batches out on a mesh, filled up to shapes that never change; tables are laid out once."""

    def __init__(self, steps: int, parts: int):
        self._steps, self._parts = steps, parts
        self._tables: dict[int, tuple[Any, Any]] = {}

    def __call__(self, batches: Batches, mesh: Mesh) -> tuple[Any, Int[np.ndarray, "steps batch"] | None]:
        """A table and each step's rows of it, or the steps' batches themselves, `[steps, batch, …]`, and None."""
        rows = self._filled(batches.rows, math.prod(mesh.shape[axis] for axis in ROWS))
        if batches.read is None:
            return self._table(batches.table, mesh), rows.astype(np.int32)
        return _read(batches.read, rows, mesh), None

    def _table(self, table: Any, mesh: Mesh) -> Any:
        if id(table) not in self._tables:
            self._tables[id(table)] = table, place(table, mesh, PartitionSpec())
        return self._tables[id(table)][1]

    def _filled(self, rows: np.ndarray, devices: int) -> np.ndarray:
        steps, batch = rows.shape
        missing = -batch % (self._parts * devices)
        return np.pad(rows, ((0, self._steps - steps), (0, missing)), constant_values=NO_ROW).astype(rows.dtype)


def _read(read: Callable, rows: np.ndarray, mesh: Mesh) -> Any:
    """This host's part of the batches, as a part of arrays that lie on all hosts."""
    sharding = NamedSharding(mesh, PartitionSpec(None, ROWS))
    if hosts.is_alone():
        return jax.device_put(_of_rows(read, rows), sharding)
    held: Any = sharding.addressable_devices_indices_map(rows.shape).values()
    own = {index[1].indices(rows.shape[1])[:2] for index in held}
    local = np.concatenate([rows[:, start:stop] for start, stop in sorted(own)], axis=1)
    return jax.tree.map(
        lambda part: jax.make_array_from_process_local_data(sharding, part, (*rows.shape, *part.shape[2:])),
        _of_rows(read, local),
    )


def _of_rows(read: Callable, rows: np.ndarray) -> Any:
    """What is read of rows; `NO_ROW` gives zeros."""
    is_row = rows >= 0
    found = read(np.maximum(rows, 0))
    return jax.tree.map(lambda part: np.where(is_row.reshape(*rows.shape, *(1,) * (part.ndim - 2)), part, 0), found)


def require_same_rows(step: int, batches: list[Batches]) -> None:
    """Raise UserError where the hosts of a run have other rows for a step."""
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(one.rows).tobytes() for one in batches)).hexdigest()
    hosts.require_same(f"the rows of step {step:,}", digest)
