"""Linen shells that own the weights of recurrent layers."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.recurrent import GRUWeights, gru


class GRUCell(nn.Module):
    """Owns one layer's weights, given in `dtype` by `weights()`."""

    inputs: int
    features: int
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32

    def setup(self):
        shapes = {
            "w_i": (nn.initializers.glorot_uniform(), (self.inputs, 3 * self.features)),
            "w_h": (nn.initializers.orthogonal(), (self.features, 3 * self.features)),
            "bias": (nn.initializers.zeros, (3 * self.features,)),
            "candidate_bias": (nn.initializers.zeros, (self.features,)),
        }
        self.stored = GRUWeights(**{name: self.param(name, *rest, self.param_dtype) for name, rest in shapes.items()})

    def weights(self) -> GRUWeights:
        return GRUWeights(*(array.astype(self.dtype) for array in self.stored))


class GRUEncoder(nn.Module):
    """Stacked GRU layers, each of both directions side by side where `bidirectional` (Bahdanau et al. 2015, §3.2)."""

    inputs: int
    features: int
    layers: int
    bidirectional: bool
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32

    def setup(self):
        directions = 2 if self.bidirectional else 1
        self.cells = [
            [
                GRUCell(
                    self.inputs if layer == 0 else directions * self.features,
                    self.features,
                    self.dtype,
                    self.param_dtype,
                    name=f"layer_{layer}_{('forward', 'backward')[direction]}",
                )
                for direction in range(directions)
            ]
            for layer in range(self.layers)
        ]

    def __call__(
        self, x: Float[Array, "batch t d"], valid: Bool[Array, "batch t"], dropout: Dropout | None
    ) -> tuple[Float[Array, "batch t f"], tuple[Float[Array, "batch f"], ...]]:
        """The last layer's states and every layer's final state; dropout acts between layers."""
        finals = []
        for layer, cells in enumerate(self.cells):
            if layer > 0:
                x = drop(x, dropout.fold(layer) if dropout else None)
            runs = [gru(x, valid, cell.weights(), reverse=direction == 1) for direction, cell in enumerate(cells)]
            x = jnp.concatenate([states for states, _ in runs], axis=-1)
            finals.append(jnp.concatenate([last for _, last in runs], axis=-1))
        return x, tuple(finals)
