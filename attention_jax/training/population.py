"""A population: members that share a compiled program, one after another through it, or side by side in it.

Members differ in their dynamic values alone (`hyper`, and the rows of their batches). Either way a member takes the
steps that it would take alone.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attention_jax.training.compiling import Inspect, Programs
from attention_jax.training.placement import make_mesh, mesh_of_state, shardings_of, whole
from attention_jax.training.products import with_fast_gradients
from attention_jax.training.state import TrainState

Steps = Callable[..., TrainState]  # (state, table, rows, count, hyper) → state


class Look(NamedTuple):
    """What the loop sees of its members, each `[members]`; items and loss are summed since they were last logged."""

    step: np.ndarray
    goes_on: np.ndarray
    items: np.ndarray
    loss: np.ndarray


class Population(NamedTuple):
    """How members are held and advanced between two logged steps; `packed` is its own form of a list of states."""

    mesh: Callable[[int], Mesh]  # of so many members
    pack: Callable[[list[TrainState]], Any]
    advance: Callable[[Any, Sequence[Any], Sequence[np.ndarray | None], Any, Sequence[Mapping]], Any]  # tables, rows
    prepare: Callable[..., None]  # the program of an `advance`: the same, with the shapes of states in place of packed
    unpack: Callable[[Any], list[TrainState]]
    look: Callable[[Any], Look]
    programs: Programs  # those of `advance`


def loop(steps: Steps, sizes: Mapping[str, int], inspect: Inspect) -> Population:
    """One member after another through one program: what each would be alone, bit by bit."""
    programs = Programs(with_fast_gradients(steps), inspect, donate_argnums=0)

    def asked(state, *others):
        options = {"mesh": mesh_of_state(state), "out_shardings": shardings_of(state)}
        return (_shapes(others[:2]), state, *others), options

    def advance(states, tables, rows, count, hypers):
        moved = []
        for state, table, of_member, hyper in zip(states, tables, rows, hypers, strict=True):
            arguments, options = asked(state, table, of_member, count, hyper)
            moved.append(programs.call(*arguments, **options))
        return moved

    def prepare(states, tables, rows, count, hypers):
        arguments, options = asked(states[0], tables[0], rows[0], count, hypers[0])
        programs.prepare(*arguments, **options)

    return Population(
        mesh=lambda count: make_mesh(sizes),
        pack=lambda states: states,
        advance=advance,
        prepare=prepare,
        unpack=lambda states: states,
        look=lambda states: Look(*map(np.array, zip(*map(_look, states), strict=True))),
        programs=programs,
    )


def vmapped(steps: Steps, sizes: Mapping[str, int], inspect: Inspect) -> Population:
    """All members at once: one more leading axis on every array, spread over the mesh's `population`.

    A member equals the same run alone to rounding: the compiler may sum in another order.
    """
    programs = Programs(with_fast_gradients(_side_by_side(steps)), inspect, donate_argnums=0)
    taking = Programs(lambda packed, member: jax.tree.map(lambda leaf: leaf[member], packed))

    def pack(states):
        packed = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        return jax.device_put(packed, jax.tree.map(_with_members, states[0]))

    def asked(packed, tables, rows, count, hypers):
        is_shared = rows[0] is not None
        table = tables[0] if is_shared else _stacked(tables)
        index = np.stack(rows) if is_shared else None
        options = {"mesh": mesh_of_state(packed), "out_shardings": shardings_of(packed)}
        with jax.set_mesh(mesh_of_state(packed)):
            return (_shapes(table, index), packed, table, index, count, _stacked(hypers)), options

    def advance(*given):
        arguments, options = asked(*given)
        return programs.call(*arguments, **options)

    def prepare(states, *others):
        shapes = functools.partial(_shape_with_members, len(states))
        arguments, options = asked(jax.tree.map(shapes, states[0]), *others)
        programs.prepare(*arguments, **options)

    def unpack(packed):
        alone = jax.tree.map(_without_members, packed)
        members = range(len(packed.step))
        return [taking.call(members, packed, np.int32(member), out_shardings=alone) for member in members]

    return Population(
        mesh=lambda count: make_mesh(sizes, count),
        pack=pack,
        advance=advance,
        prepare=prepare,
        unpack=unpack,
        look=_look,
        programs=programs,
    )


POPULATIONS: dict[str, Callable[[Steps, Mapping[str, int], Inspect], Population]] = {"loop": loop, "vmap": vmapped}


def _side_by_side(steps: Steps) -> Steps:
    def run(packed, table, rows, count, hyper):
        axes = (0, 0 if rows is None else None, 0, None, 0)
        return jax.vmap(steps, in_axes=axes, spmd_axis_name="population")(packed, table, rows, count, hyper)

    return run


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _shapes(*trees: Any) -> tuple:
    return tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(trees))


def _with_members(leaf: Any) -> NamedSharding:
    return NamedSharding(leaf.sharding.mesh, PartitionSpec("population", *leaf.sharding.spec))


def _shape_with_members(count: int, leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype, sharding=_with_members(leaf))


def _without_members(leaf: Any) -> NamedSharding:
    return NamedSharding(leaf.sharding.mesh, PartitionSpec(*leaf.sharding.spec[1:]))


def _look(state: TrainState) -> Look:
    loss = state.unlogged["loss"]
    return Look(*whole((state.step, state.goes_on, loss.count, loss.total)))
