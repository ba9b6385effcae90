"""A Linen shell that owns an encoding's parameters, and the record of positions that attention gets."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attention_jax.ops.positions import Encoding, Spec


class QueryKeyPositions(NamedTuple):
    """The positions of queries and keys in their text; the batch axis may be 1."""

    queries: Int[Array, "#batch q"]
    keys: Int[Array, "#batch k"]


class PositionEncoding(nn.Module):
    """The functions of `record`, with their parameters."""

    record: Encoding
    sizes: Spec
    param_dtype: DTypeLike = jnp.float32

    def setup(self):
        names = jax.eval_shape(lambda key: self.record.init(key, self.sizes), jax.random.key(0))
        self.values = {name: self.param(name, self._init, name) for name in names}

    def add(self, x: Float[Array, "batch t d"], positions: Int[Array, "#batch t"]) -> Float[Array, "batch t d"]:
        """The embeddings x with their positions added; only for records with `add`."""
        return self.record.add(self.values, x, positions)  # type: ignore[misc]

    def rotate(self, x: Float[Array, "batch h t f"], positions: Int[Array, "#batch t"]) -> Float[Array, "batch h t f"]:
        """Queries or keys turned by their positions; unchanged for records without `rotate`."""
        return x if self.record.rotate is None else self.record.rotate(self.values, x, positions[:, None])

    def of_layers(self, layers: int) -> list["PositionEncoding"]:
        """Each layer's encoding: this one for all layers, or a new one for each if `record` is not shared."""
        return [self if self.record.is_shared else self.clone(parent=None) for _ in range(layers)]

    def _init(self, key: Array, name: str) -> Array:
        return self.record.init(key, self.sizes)[name].astype(self.param_dtype)
