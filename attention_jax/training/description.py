"""A training step as shapes: what it is called with, and what it costs, before anything is trained."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from attention_jax.ops.placing import ROWS
from attention_jax.training.blueprint import Blueprint
from attention_jax.training.compiling import Inspect, unseen
from attention_jax.training.cost import Cost, cost, flops
from attention_jax.training.hyper import rule_of, settled, traced
from attention_jax.training.placement import Placement, make_mesh
from attention_jax.training.state import Variables
from attention_jax.training.step import Loss, stepping_of, train_step


class Layout(NamedTuple):
    """How a training step lies on devices: its state's blueprint, the shapes of its batch, and `config.mesh`."""

    blueprint: Blueprint
    batch: Any
    hyper: Mapping[str, Any]
    sizes: Mapping[str, int]
    parts: int  # micro-batches

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """The mesh of `config.mesh`, over all devices unless some are given."""
        return make_mesh(self.sizes, devices=devices)

    def arguments(self, mesh: Mesh) -> tuple[Any, Any, Any]:
        """What the step is called with, laid out on a mesh; the batch is filled up to what its devices share."""
        return self.blueprint.abstract(mesh), _rows_on(self.batch, mesh, self.parts), _whole_on(self.hyper, mesh)


class Description(NamedTuple):
    """A config's parameters (shapes), one training step, and the shapes it is called with."""

    parameters: Any
    step: Callable
    arguments: tuple
    layout: Layout | None = None  # where a state is trained step by step
    needed: Callable[[], float] | None = None  # counts the FLOPs that the model needs, however they are computed
    inspect: Inspect = unseen  # of the compiled step, as `Task.inspect`
    held: Callable[[], tuple[int, int]] | None = None  # bytes of a cache: of each token, and of a text of any length
    in_sight: Callable | None = None  # the step with all its products, where `step` has some inside of fused kernels

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.parameters))

    @property
    def flops(self) -> float:
        """Matrix-product FLOPs of the step."""
        return flops(self.in_sight or self.step, *self.arguments)

    def cost(self, *arguments: Any) -> Cost:
        """What the step costs on arguments of these shapes, which lie as they do."""
        return cost(self.step, *arguments)._replace(flops=self.flops)

    @property
    def model_flops(self) -> float:
        """The FLOPs of a step that the model needs, however they are computed: what MFU counts."""
        return self.flops if self.needed is None else self.needed()


def description_of(
    config: ConfigDict,
    init: Callable[[jax.Array], Variables],
    loss: Loss,
    batch: Any,
    placement: Placement,
    more: Mapping[str, Any] = {},
) -> Description:
    """One training step on a batch of shapes; `more` are dynamic values that are not the optimizer's."""
    rule, stepping = rule_of(config.optimizer), stepping_of(config.train)
    hyper = traced(settled(config.optimizer)) | {"key": jax.random.key(0), **more}
    batch = _filled(batch, stepping.accumulate)
    blueprint = Blueprint(init, rule.optimizer, placement, bool(stepping.ema))
    state = blueprint.shapes()
    layout = Layout(blueprint, batch, hyper, config.mesh.to_dict(), stepping.accumulate)
    return Description(state.variables["params"], step_of(config, loss), (state, batch, hyper), layout)


def step_of(config: ConfigDict, loss: Loss) -> Callable:
    """A training step of this loss, as a config says."""
    return functools.partial(train_step, loss, rule_of(config.optimizer), stepping_of(config.train))


def _rows_on(batch: Any, mesh: Mesh, parts: int) -> Any:
    devices = math.prod(mesh.shape[axis] for axis in ROWS)
    return _filled(batch, devices * parts, NamedSharding(mesh, PartitionSpec(ROWS)))


def _filled(batch: Any, multiple: int, sharding: NamedSharding | None = None) -> Any:
    """The shapes of a batch that is filled up to a multiple of so many rows, as a run does it."""

    def of(leaf):
        rows = leaf.shape[0] + -leaf.shape[0] % multiple
        return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype, sharding=sharding)

    return jax.tree.map(of, batch)


def _whole_on(tree: Any, mesh: Mesh) -> Any:
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)
