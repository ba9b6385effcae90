"""A Linen shell that owns an encoding's parameters, and the positions that attention is handed."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attention_jax.ops.positions import Encoding, Spec


class Places(NamedTuple):
    """Where queries and keys stand in their text; the batch axis may be 1."""

    queries: Int[Array, "#batch q"]
    keys: Int[Array, "#batch k"]


class PositionEncoding(nn.Module):
    """The parts of `record` with their parameters."""

    record: Encoding
    sizes: Spec
    param_dtype: DTypeLike = jnp.float32

    def setup(self):
        names = jax.eval_shape(lambda key: self.record.init(key, self.sizes), jax.random.key(0))
        self.values = {name: self.param(name, self._init, name) for name in names}

    def add(self, x: Float[Array, "batch t d"], positions: Int[Array, "#batch t"]) -> Float[Array, "batch t d"]:
        """Embeddings that know their positions, of records that have it."""
        return self.record.add(self.values, x, positions)  # type: ignore[misc]

    def rotate(self, x: Float[Array, "batch h t f"], positions: Int[Array, "#batch t"]) -> Float[Array, "batch h t f"]:
        """Queries or keys that know their positions."""
        return x if self.record.rotate is None else self.record.rotate(self.values, x, positions[:, None])

    def bias(self, query: Float[Array, "batch h q f"], places: Places) -> Float[Array, "#batch h q k"] | None:
        """What the scores get beside qᵀk."""
        return None if self.record.bias is None else self.record.bias(self.values, query, *places)

    def mix(self, weights: Float[Array, "batch h q k"], places: Places) -> Float[Array, "batch h q f"]:
        """What each query reads beside the values, of records that have it."""
        return self.record.mix(self.values, weights, *places)  # type: ignore[misc]

    def of_layers(self, layers: int) -> list["PositionEncoding"]:
        """Each layer's encoding: this one for all, or where they share nothing one of its own."""
        return [self if self.record.is_shared else self.clone(parent=None) for _ in range(layers)]

    def _init(self, key: Array, name: str) -> Array:
        return self.record.init(key, self.sizes)[name].astype(self.param_dtype)
