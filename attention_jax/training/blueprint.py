"""What training states are made from: their shapes, where they lie, and fresh ones made where they lie."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from attention_jax.training.optimizer import new_moments
from attention_jax.training.placement import BY_SIZE, Placement, partitions, shardings
from attention_jax.training.state import TrainState, Variables, new_state


class Blueprint(NamedTuple):
    """All that decides the shapes of a run's training states."""

    init: Callable[[jax.Array], Variables]  # key → variables
    optimizer: str
    placement: Placement = BY_SIZE
    has_average: bool = False

    def partitions(self, mesh: Mesh) -> Any:
        """The partition of every array of a state."""
        return partitions(self.shapes(), self.placement, mesh)

    def abstract(self, mesh: Mesh) -> TrainState:
        """The shape of every array of a state, and its sharding."""
        shapes = self.shapes()
        laid = shardings(partitions(shapes, self.placement, mesh), mesh)
        place = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # noqa: E731
        return jax.tree.map(place, shapes, laid)

    def create(self, seeds: Sequence[int], mesh: Mesh, start_from: Variables | None = None) -> list[TrainState]:
        """Fresh states with these seeds, made where they lie; or states that start from other variables."""
        laid = shardings(partitions(self.shapes(start_from), self.placement, mesh), mesh)
        make = jax.jit(_new, static_argnums=0, out_shardings=laid)
        return [make(self, seed, start_from) for seed in seeds]

    def shapes(self, start_from: Variables | None = None) -> TrainState:
        """The shape of every array of a state."""
        return jax.jit(_new, static_argnums=0).eval_shape(self, 0, start_from)


def _new(blueprint: Blueprint, seed: Any, start_from: Variables | None) -> TrainState:
    """A fresh state. JAX keeps what it traced for a blueprint, which is asked for shapes again and again."""
    variables = blueprint.init(jax.random.key(seed)) if start_from is None else start_from
    moments = new_moments(variables["params"], blueprint.optimizer)
    return new_state(variables, moments, seed, has_average=blueprint.has_average)
