"""A population: members that share a compiled program, one after another through it, or side by side in it.

Members differ in their dynamic values alone (`hyper`, and the rows of their batches). Either way a member takes the
steps that it would take alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from attention_jax.training.state import TrainState

Steps = Callable[..., TrainState]  # (state, table, rows, count, hyper) → state


class Look(NamedTuple):
    """What the loop sees of its members, each `[members]`; items and loss are summed since they were last logged."""

    step: np.ndarray
    is_finite: np.ndarray
    items: np.ndarray
    loss: np.ndarray


class Population(NamedTuple):
    """How members are held and advanced between two logged steps; `packed` is its own form of a list of states."""

    pack: Callable[[list[TrainState]], Any]
    advance: Callable[[Any, Sequence[Any], Sequence[np.ndarray], int, Sequence[Mapping]], Any]  # …, tables, rows, …
    unpack: Callable[[Any], list[TrainState]]
    look: Callable[[Any], Look]
    compiled: Callable[[], int]  # how many programs were compiled so far


def loop(steps: Steps, is_table_shared: bool) -> Population:
    """One member after another through one program: what each would be alone, bit by bit."""
    del is_table_shared
    run: Any = jax.jit(steps, donate_argnums=0)

    def advance(states, tables, rows, count, hypers):
        return [run(*member[:3], count, member[3]) for member in zip(states, tables, rows, hypers, strict=True)]

    return Population(
        pack=lambda states: states,
        advance=advance,
        unpack=lambda states: states,
        look=lambda states: Look(*map(np.array, zip(*map(_look, states), strict=True))),
        compiled=run._cache_size,
    )


def vmapped(steps: Steps, is_table_shared: bool) -> Population:
    """All members at once: one more leading axis on every array, spread over the devices where it divides.

    A member equals the same run alone to rounding: the compiler may sum in another order.
    """
    run: Any = jax.jit(jax.vmap(steps, in_axes=(0, None if is_table_shared else 0, 0, None, 0)), donate_argnums=0)

    def pack(states):
        return jax.device_put(_stacked(states), _over_devices(len(states)))

    def advance(packed, tables, rows, count, hypers):
        table = tables[0] if is_table_shared else _stacked(tables)
        return run(packed, table, np.stack(rows), count, _stacked(hypers))

    def unpack(packed):
        first = jax.devices()[0]
        return [
            jax.device_put(jax.tree.map(lambda leaf, member=member: leaf[member], packed), first)
            for member in range(len(packed.step))
        ]

    return Population(
        pack=pack,
        advance=advance,
        unpack=unpack,
        look=_look,
        compiled=run._cache_size,
    )


POPULATIONS: dict[str, Callable[[Steps, bool], Population]] = {"loop": loop, "vmap": vmapped}


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _over_devices(members: int) -> jax.sharding.Sharding:
    devices = jax.devices()
    if members % len(devices):
        devices = devices[:1]
    mesh = jax.make_mesh((len(devices),), ("population",), axis_types=(AxisType.Auto,), devices=devices)
    return NamedSharding(mesh, PartitionSpec("population"))


def _look(state: TrainState) -> Look:
    loss = state.unlogged["loss"]
    return Look(*jax.device_get((state.step, state.is_finite, loss.count, loss.total)))
