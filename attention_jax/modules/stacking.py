"""Layers one after another: each a module with variables of its own, or stacked and scanned; rematerialized or not."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.modules.transformer import REMAT, LayerSpec
from attention_jax.ops.placing import over_rows
from attention_jax.ops.stacking import at_layer, stack, stack_layers

# (layer, x, index of the layer, what is its alone) → (x after it, anything else)
OneLayer = Callable[[nn.Module, Array, Array | int, Any], tuple[Array, Any]]


class Layered(nn.Module, kw_only=True):
    """A model of layers that are modules of the same kind.

    With `layer.stacked` its variables have the layers of a stack as one tree, layers first, under the stack's name (see
    `ops/stacking.py`), and a text goes through them in one `scan`: a program's size is then the same for any depth.
    """

    layer: LayerSpec

    @nn.nowrap
    def init_with_output(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """As of any module; stacked layers are initialised one by one, to the numbers that they have unstacked."""
        output, variables = super().init_with_output(*args, **kwargs)
        return output, stack_layers(variables) if self.layer.stacked else variables

    @nn.nowrap
    def through(
        self, name: str, layers: Sequence[nn.Module], one: OneLayer, x: Float[Array, "batch t d"], own: Any
    ) -> tuple[Float[Array, "batch t d"], Any]:
        """`x` after every layer of the stack `name`, and what else each one gives, layers first.

        `one(layer, x, index, own)` applies a layer; the arrays of `own` have layers as the first axis, of which it gets
        its part. On a mesh that is set, rows lie over its data axes before and after every layer.
        """
        apply = one if self.is_initializing() else rematerialized(one, self.layer)
        x = over_rows(x)
        if self._is_scanned:
            return self._scanned(name, layers[0], apply, x, (jnp.arange(len(layers)), own))
        found = []
        for index, layer in enumerate(layers):
            x, more = apply(layer, x, index, at_layer(own, index))
            x = over_rows(x)
            found.append(more)
        return x, stack(found)

    @nn.nowrap
    def each(self, name: str, layers: Sequence[nn.Module]) -> Sequence[nn.Module]:
        """The layers of the stack `name`, each with its variables."""
        if not self._is_scanned:
            return layers
        held, alone, shared = self._held(name), _alone(name, layers[0]), _shared(layers[0])
        return [alone.bind(_with(at_layer(held, index), shared)) for index in range(len(layers))]

    @property
    def _is_scanned(self) -> bool:
        return self.layer.stacked and not self.is_initializing()

    def _held(self, name: str) -> dict[str, Any]:
        return {collection: tree[name] for collection, tree in self.variables.items() if name in tree}

    def _scanned(self, name: str, like: nn.Module, apply: OneLayer, x: Array, own: tuple) -> tuple[Array, Any]:
        held, alone, shared = self._held(name), _alone(name, like), _shared(like)
        changing = [
            collection for collection in held if collection != "params" and self.is_mutable_collection(collection)
        ]

        def step(x, of_layer):
            variables, (index, own) = of_layer
            layer = alone.bind(_with(variables, shared), mutable=changing)
            x, more = apply(layer, x, index, own)
            return over_rows(x), (more, {collection: layer.variables[collection] for collection in changing})

        x, (found, changed) = jax.lax.scan(step, x, (held, own))
        for collection, tree in changed.items():
            self.put_variable(collection, name, tree)
        return x, found


def rematerialized(one: OneLayer, spec: LayerSpec) -> OneLayer:
    """`one`, whose backward pass finds saved what the policy of `spec.remat` says, and computes the rest again."""
    if spec.remat == "none":
        return one
    return nn.remat(one, policy=REMAT[spec.remat], prevent_cse=not spec.stacked)


def _alone(name: str, layer: nn.Module) -> nn.Module:
    """The layer without variables, whose encoding is a part of it even where layers share one."""
    return layer.clone(parent=None, name=name, encoding=layer.encoding.clone(parent=None, name=None))


def _shared(layer: nn.Module) -> dict[str, Any]:
    """The parameters of the encoding that a model's layers share."""
    return layer.encoding.variables.get("params", {}) if layer.encoding.record.is_shared else {}


def _with(variables: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    return variables | {"params": variables["params"] | ({"encoding": shared} if shared else {})}
