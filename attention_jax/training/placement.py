"""Where a training state lies: a mesh of devices, and which axes of which arrays are spread over it.

The mesh has the axes `population` (members that train side by side), `data` (rows of a batch), `fsdp` (rows, and
parameters with all that the optimizer keeps of them; Rajbhandari et al. 2020, ZeRO stage 3), `context` (tokens of a
row; Liu et al. 2023) and `tensor` (parameters and the features that they make; Shoeybi et al. 2019, §3). A model's
table says which parameter goes where.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from attention_jax import hosts
from attention_jax.errors import UserError
from attention_jax.ops.placing import ROWS

AXES = ("population", "data", "fsdp", "context", "tensor")
ALL_ROWS = ("population", *ROWS, "context")  # of an evaluation, which has one member at a time and keeps no activations
REST = -1
# population: as many devices as divide the members; data: all others.
MESH = {"population": REST, "data": REST, "fsdp": 1, "context": 1, "tensor": 1}
PARAMETERS = "variables/params/"

Axis = str | tuple[str, ...] | None  # of the mesh, or several
Partition = tuple[Axis, ...]  # the mesh's axis for each of an array's last axes; those before are whole


class Placement(NamedTuple):
    """A model's table: each line is a pattern of parameters' paths, and their partition.

    A parameter that no line matches is spread over `fsdp` by its largest axis that divides, from `min_size` elements
    on; None: it is refused.
    """

    lines: tuple[tuple[str, Partition], ...] = ()
    min_size: int | None = 2**16


BY_SIZE = Placement()  # without lines


def make_mesh(sizes: Mapping[str, int], members: int = 1, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh of `config.mesh` for so many members, over all devices.

    Raises UserError for sizes that do not give as many devices as there are.
    """
    devices = jax.devices() if devices is None else list(devices)
    resolved = _resolved(dict(sizes), members, len(devices))
    kinds = (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(tuple(resolved[axis] for axis in AXES), AXES, axis_types=kinds, devices=devices)


def _resolved(sizes: dict[str, int], members: int, devices: int) -> dict[str, int]:
    for axis, size in sizes.items():
        if size < 1 and size != REST:
            raise UserError(f"config.mesh.{axis}={size}: needs 1 or more devices, or {REST} for the rest.")
    if sizes["population"] == REST:
        sizes["population"] = math.gcd(members, max(devices // _known(sizes), 1))
    rest = [axis for axis, size in sizes.items() if size == REST]
    if len(rest) > 1:
        raise UserError(f"config.mesh: {' and '.join(rest)} are both {REST}, and one alone can be the rest.")
    for axis in rest:
        sizes[axis] = max(devices // _known(sizes), 1)
    if math.prod(sizes.values()) != devices:
        shown = " × ".join(f"{axis} {sizes[axis]}" for axis in AXES)
        raise UserError(
            f"config.mesh: {shown} is {math.prod(sizes.values())} devices, and there are {devices}. Let one axis be "
            f"the rest: --config.mesh.data={REST}."
        )
    if members % sizes["population"]:
        raise UserError(
            f"config.mesh.population={sizes['population']}: does not divide the {members} members that train side by "
            f"side. Set {REST}."
        )
    return sizes


def _known(sizes: Mapping[str, int]) -> int:
    return math.prod(size for size in sizes.values() if size != REST)


def partitions(state: Any, placement: Placement, mesh: Mesh) -> Any:
    """The partition of every array of a training state (shapes suffice), as a tree of `PartitionSpec`s.

    What the optimizer keeps of a parameter, in its shape, lies as the parameter does. Other arrays of `min_size`
    elements and more are spread by their largest axis, and smaller ones are whole on every device. Raises UserError
    for a parameter that no line or several match, or whose axis does not divide.
    """
    shapes = {name: leaf.shape for name, leaf in named_leaves(state)}
    own = {name.removeprefix(PARAMETERS): name for name in shapes if name.startswith(PARAMETERS)}
    chosen = {path: _of_parameter(path, shapes[name], placement, mesh) for path, name in own.items()}

    def of(path: tuple, leaf: Any) -> PartitionSpec:
        name = _name(path)
        owner = next((p for p in _suffixes(name) if p in chosen), None)
        if owner is not None and leaf.shape == shapes[own[owner]]:
            return chosen[owner]
        return _largest(leaf.shape, placement.min_size, mesh) or PartitionSpec()

    return jax.tree_util.tree_map_with_path(of, state)


def _of_parameter(path: str, shape: tuple[int, ...], placement: Placement, mesh: Mesh) -> PartitionSpec:
    lines = [(pattern, partition) for pattern, partition in placement.lines if re.search(pattern, path)]
    if len(lines) > 1:
        raise UserError(f"placement of {path}: {len(lines)} lines match it: {', '.join(p for p, _ in lines)}.")
    if not lines and placement.min_size is None:
        raise UserError(f"placement of {path}: no line matches it.")
    if not lines:
        found = _largest(shape, placement.min_size, mesh)
        if found is None:
            raise UserError(
                f"placement of {path}: no axis of {shape} divides by config.mesh.fsdp={mesh.shape['fsdp']}. Choose "
                "another mesh."
            )
        return found
    pattern, partition = lines[0]
    if len(partition) > len(shape):
        raise UserError(f"placement of {path}: the line {pattern} is for {len(partition)} axes, and it has {shape}.")
    for axis, name in enumerate(partition, start=len(shape) - len(partition)):
        names = (name,) if isinstance(name, str) else name or ()
        if shape[axis] % math.prod(mesh.shape[one] for one in names):
            wanted = " × ".join(f"config.mesh.{one}={mesh.shape[one]}" for one in names)
            raise UserError(
                f"placement of {path}: its axis {axis} of {shape} does not divide by {wanted}. Choose another mesh, or "
                "another size."
            )
    return PartitionSpec(*(None,) * (len(shape) - len(partition)), *partition)


def _largest(shape: tuple[int, ...], min_size: int | None, mesh: Mesh) -> PartitionSpec | None:
    """The largest axis over `fsdp`, whole where it is small; None where no axis divides."""
    parts = mesh.shape["fsdp"]
    if parts == 1 or min_size is None or math.prod(shape) < min_size:
        return PartitionSpec()
    dividing = [axis for axis, size in enumerate(shape) if size % parts == 0]
    if not dividing:
        return None
    best = max(dividing, key=lambda axis: shape[axis])
    return PartitionSpec(*(None,) * best, "fsdp")


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Each leaf with its path, as "variables/params/encoder_0/query"."""
    return ((_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree))


def _name(path: tuple) -> str:
    return "/".join(str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path)


def _suffixes(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))


def place(tree: Any, mesh: Mesh, specs: Any) -> Any:
    """Arrays, of which every host has the whole, laid out as a tree (or one) of `PartitionSpec`s says."""

    def put(leaf, spec):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf
        sharding = NamedSharding(mesh, spec)
        if hosts.is_alone():
            return jax.device_put(leaf, sharding)
        if jax.dtypes.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf), spec))
        held = np.asarray(leaf)
        return jax.make_array_from_callback(held.shape, sharding, lambda index: held[index])

    if isinstance(specs, PartitionSpec):
        return jax.tree.map(lambda leaf: put(leaf, specs), tree)
    return jax.tree.map(put, tree, specs)


def shardings(specs: Any, mesh: Mesh) -> Any:
    """The same tree of shardings."""
    is_spec = lambda leaf: isinstance(leaf, PartitionSpec)  # noqa: E731
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)


def shardings_of(tree: Any) -> Any:
    """The shardings of arrays."""
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def mesh_of_state(tree: Any) -> Mesh:
    """The mesh that a training state is laid out on."""
    return jax.tree.leaves(tree)[0].sharding.mesh


def mesh_of(tree: Any) -> Any:
    """The mesh that arrays, or their shapes, are laid out on; None where they are on one device."""
    is_laid = lambda leaf: isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))  # noqa: E731
    found = next((leaf.sharding for leaf in jax.tree.leaves(tree) if is_laid(leaf)), None)
    return found.mesh if isinstance(found, NamedSharding) and found.mesh.size > 1 else None


def spread_rows(batch: Any, like: Any) -> Any:
    """A batch with its rows, filled up by rows of zeros, over the devices that `like` is on; for an evaluation.

    Every host has the whole batch. Where there is one device, it is returned as it is.
    """
    mesh = mesh_of(like)
    if mesh is None:
        return batch
    parts = math.prod(mesh.shape[axis] for axis in ALL_ROWS)
    return place(jax.tree.map(lambda rows: filled(rows, parts), batch), mesh, PartitionSpec(ALL_ROWS))


def everywhere(tree: Any, like: Any) -> Any:
    """Arrays, of which every host has the whole, on all devices that `like` is on."""
    mesh = mesh_of(like)
    return tree if mesh is None else place(tree, mesh, PartitionSpec())


def filled(rows: Any, parts: int) -> np.ndarray:
    """Rows of zeros added to make a multiple of `parts`."""
    missing = -len(rows) % parts
    return np.pad(np.asarray(rows), ((0, missing), *((0, 0),) * (np.ndim(rows) - 1)))


def whole(tree: Any) -> Any:
    """Arrays that lie on many devices, of whichever host, as NumPy arrays on every host."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    if all(leaf.is_fully_addressable or leaf.is_fully_replicated for leaf in arrays):
        return jax.device_get(tree)
    mesh = mesh_of_state(tree)
    return jax.device_get(jax.jit(lambda held: held, out_shardings=NamedSharding(mesh, PartitionSpec()))(tree))


def bytes_a_device(state: Any, specs: Any, mesh: Mesh) -> int:
    """The bytes of a state's arrays (shapes suffice) that each device holds."""
    sizes = jax.tree.map(
        lambda leaf, spec: math.prod(NamedSharding(mesh, spec).shard_shape(leaf.shape)) * leaf.dtype.itemsize,
        state,
        specs,
    )
    return sum(jax.tree.leaves(sizes))
