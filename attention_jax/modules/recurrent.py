"""Linen shells that own the parameters of recurrent layers."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.recurrent import CELLS, CellWeights, State, recurrent


class RecurrentCell(nn.Module):
    """One layer's parameters, as they are stored. An LSTM's forget gate starts open (bias 1)."""

    cell: str
    inputs: int
    features: int
    param_dtype: DTypeLike = jnp.float32

    def setup(self):
        width = CELLS[self.cell].gates * self.features
        shapes: dict[str, tuple[Any, ...]] = {
            "w_i": (nn.initializers.glorot_uniform(), (self.inputs, width)),
            "w_h": (_orthogonal, (self.features, width)),
            "bias": (self._bias, (width,)),
        }
        if self.cell == "gru":
            shapes["candidate_bias"] = (nn.initializers.zeros, (self.features,))
        self.weights = CellWeights(**{name: self.param(name, *rest, self.param_dtype) for name, rest in shapes.items()})

    def _bias(self, key: Array, shape: tuple[int], dtype: DTypeLike) -> Array:
        del key
        if self.cell == "gru":
            return jnp.zeros(shape, dtype)
        return jnp.zeros(shape, dtype).at[self.features : 2 * self.features].set(1)


def _orthogonal(key: Array, shape: tuple[int, int], dtype: DTypeLike) -> Array:
    """Orthonormal rows, which are computed in float32: there is no such factoring in bfloat16."""
    return nn.initializers.orthogonal()(key, shape, jnp.promote_types(dtype, jnp.float32)).astype(dtype)


class RecurrentEncoder(nn.Module):
    """Stacked layers; if `bidirectional`, each has both directions side by side (Bahdanau et al. 2015, §3.2)."""

    cell: str
    inputs: int
    features: int
    layers: int
    bidirectional: bool
    param_dtype: DTypeLike = jnp.float32

    def setup(self):
        directions = 2 if self.bidirectional else 1
        self.cells = [
            [
                RecurrentCell(
                    self.cell,
                    self.inputs if layer == 0 else directions * self.features,
                    self.features,
                    self.param_dtype,
                    name=f"layer_{layer}_{('forward', 'backward')[direction]}",
                )
                for direction in range(directions)
            ]
            for layer in range(self.layers)
        ]

    def __call__(
        self,
        x: Float[Array, "batch t d"],
        valid: Bool[Array, "batch t"],
        dropout: Dropout | None,
        states: tuple[State, ...] | None = None,
    ) -> tuple[Float[Array, "batch t f"], tuple[State, ...]]:
        """The last layer's outputs and every layer's final state; dropout acts between layers.

        `states` are those of the layers before the first token, of one direction; zeros unless given.
        """
        finals = []
        for layer, cells in enumerate(self.cells):
            if layer > 0:
                x = drop(x, dropout.fold(layer) if dropout else None)
            runs = [
                recurrent(self.cell, x, valid, cell.weights, direction == 1, states[layer] if states else None)
                for direction, cell in enumerate(cells)
            ]
            x = jnp.concatenate([outputs for outputs, _ in runs], axis=-1)
            finals.append(
                tuple(jnp.concatenate(parts, axis=-1) for parts in zip(*(last for _, last in runs), strict=True))
            )
        return x, tuple(finals)
