"""Attention of texts whose tokens lie over the devices of a mesh's axis `context`: by a ring, or with keys gathered.

Each device has queries and keys of its own, and folds blocks of keys into its queries (`folding`). In a ring it reads
the keys that it has and passes them on to the next device, until all have seen all (Liu et al. 2023, §3); gathered, it
gets the keys of all at once, which are few where heads share them (Llama Team 2024, §3.3.2). Gradients of keys go the
same ways. On one device, and where no mesh is set, both are `chunked`.

A causal mask gives late queries more work than early ones. Of 2n parts of a text device i therefore takes the parts i
and 2n − 1 − i: each then has the same work, in every round of a ring (Llama Team 2024, §3.3.2).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from attention_jax.backends import chunked
from attention_jax.backends.folding import Job, Keys, Queries, Way, folded, is_array, is_float, joined, parted
from attention_jax.ops.attention import Attended, Attention
from attention_jax.ops.placing import CONTEXT, parts_of_a_text

Route = list[tuple[int, int]]  # from which device to which


def pooled(
    way: Callable[[int], Way],
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    attention: Attention,
    blocks: tuple[int, int],
) -> Attended:
    """The attention that the record asks for, in blocks of `blocks` = (queries, keys) at most.

    `way` says how keys come to the queries of so many devices. Texts of any length are cut evenly.
    """
    devices = parts_of_a_text()
    if devices == 1:
        return chunked.pooled(query, key, value, attention, blocks)
    fold = functools.partial(_folded_over, devices, way(devices))
    return chunked.pooled(query, key, value, attention, blocks, fold, 2 * devices)


def ring(devices: int) -> Way:
    """Every device passes the keys that it has read, and their gradients, to the next one."""
    turns = [(device, (device + 1) % devices) for device in range(devices)]
    return Way(
        rounds=devices,
        fetch=functools.partial(paired, devices),
        pass_on=functools.partial(jax.tree.map, lambda array: jax.lax.ppermute(array, CONTEXT, turns)),
        give_back=functools.partial(unpaired, devices),
    )


def gathered(devices: int) -> Way:
    """Every device gets all keys, and gives the sum of their gradients back in parts."""
    del devices
    gather = functools.partial(jax.lax.all_gather, axis_name=CONTEXT, tiled=True)
    scatter = functools.partial(jax.lax.psum_scatter, axis_name=CONTEXT, tiled=True)
    return Way(fetch=functools.partial(jax.tree.map, gather), give_back=functools.partial(jax.tree.map, scatter))


def _folded_over(devices: int, way: Way, job: Job, queries: Queries, keys: Keys) -> Float[Array, "blocks *batch q v"]:
    """`folded`, by devices that each have a stretch of the blocks; what all blocks share, each device has.

    What is shared comes in float32, in which its gradients are added up over devices: in bfloat16 they would lose what
    one device's is small beside another's, and jaxlib 0.12 ends the process of a CPU that compiles such a sum.
    """
    arrays, fixed = parted(job, is_array)
    narrow = jax.tree.map(lambda leaf: leaf.dtype, arrays)

    def of_device(arrays, queries, keys):
        shared = joined(jax.tree.map(_as, arrays, narrow), fixed)
        return unpaired(devices, folded(shared, paired(devices, queries), keys, way))

    specs = PartitionSpec(), PartitionSpec(CONTEXT), PartitionSpec(CONTEXT)
    run = jax.shard_map(of_device, in_specs=specs, out_specs=specs[1], axis_names={CONTEXT}, check_vma=False)
    return run(jax.tree.map(_widened, arrays), queries, keys)


def _as(leaf: Array, dtype: Any) -> Array:
    return leaf if leaf.dtype == dtype else leaf.astype(dtype)  # keys of dropout have a dtype of their own


def _widened(leaf: Array) -> Array:
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) if is_float(leaf) else leaf


def paired(devices: int, tree: Any) -> Any:
    """Device i has the parts 2i and 2i + 1 of 2n: it gets the parts i and 2n − 1 − i, the one of an even number first.

    Parts are halves of the arrays' first axis. The first halves go to one device each, and so do the second ones.
    """
    return _exchanged(tree, routes(devices))


def unpaired(devices: int, tree: Any) -> Any:
    """What `paired` was given."""
    return _exchanged(tree, [[(to, start) for start, to in route] for route in routes(devices)])


def routes(devices: int) -> list[Route]:
    """Where the first halves go, and the second ones."""
    owner = lambda part: min(part, 2 * devices - 1 - part)  # noqa: E731
    return [[(device, owner(2 * device + half)) for device in range(devices)] for half in range(2)]


def _exchanged(tree: Any, routes: list[Route]) -> Any:
    def of(array):
        halves = zip(jnp.split(array, 2), routes, strict=True)
        return jnp.concatenate([jax.lax.ppermute(half, CONTEXT, route) for half, route in halves])

    return jax.tree.map(of, tree)
