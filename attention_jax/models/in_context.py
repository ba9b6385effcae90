"""A Transformer that reads vectors and answers each with numbers: regression in context."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.modules.logits import logits_layer
from attention_jax.modules.normalization import Norm
from attention_jax.modules.positions import PositionEncoding, QueryKeyPositions
from attention_jax.modules.stacking import Layered
from attention_jax.modules.transformer import EncoderLayer, LayerSpec, Look, Reading
from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.masking import causal_mask
from attention_jax.ops.positions import require_room


class InContextRegressor(Layered, kw_only=True):
    """A language model's causal layers between two linear maps: from each vector, and to the answer after it.

    `outputs` is the size of an answer. The other fields are those of `LanguageModel`.
    """

    outputs: int
    layers: int
    positions: str
    max_length: int
    layer: LayerSpec

    @classmethod
    def of(cls, **flat: Any) -> "InContextRegressor":
        """The model of a config's section: its own fields and those of `LayerSpec`, side by side."""
        return cls(**LayerSpec.split(flat))

    def __post_init__(self):
        for name in ("outputs", "layers", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: needs 1 or more.")
        self.layer.check()
        self.layer.require_read()
        self.layer.require_unset(
            ("cross_score", "cross_normalize", "cross_family"), "there is no attention to a source"
        )
        self.layer.require_unset(("pattern",), "a query here is answered from all pairs before it")
        if self._encoding().record.sample_positions:
            raise ValueError(f"positions={self.positions!r}: only a language model draws positions at random.")
        super().__post_init__()

    def setup(self):
        types = self.layer.types
        self.read_in = nn.Dense(self.layer.width, **types)
        self.encoding = self._encoding()
        own = self.encoding.of_layers(self.layers)
        self.blocks = [EncoderLayer(self.layer, one, name=f"layer_{layer}") for layer, one in enumerate(own)]
        if self.layer.norm_first:
            self.last_norm = Norm(self.layer.norm, self.layer.param_dtype)
        self.read_out = logits_layer(self.outputs, **types)

    @property
    def backend(self) -> str:
        return self.layer.backend

    def require_room(self, length: int) -> None:
        """Raise ValueError where the encoding or the score has no room for `length` vectors."""
        encoding = self._encoding()
        require_room(self.positions, encoding.record, encoding.sizes, length, "positions")
        self.layer.of_self.require_room(length)

    def __call__(
        self, vectors: Float[Array, "batch t f"], dropout: Dropout | None = None
    ) -> Float[Array, "batch t outputs"]:
        """The answer after each vector, from it and those before it.

        Raises ValueError for more vectors than the encoding has room for.
        """
        count, length, _ = vectors.shape
        self.require_room(length)
        positions, valid = jnp.arange(length)[None], jnp.ones((count, length), bool)
        reading = Reading(causal_mask(length, length), QueryKeyPositions(positions, positions))

        def read(block, x, index, own):
            x, *_ = block(x, valid, reading, dropout and dropout.fold(1000 + index), Look(depth=index))
            return x, None

        x = self.read_in(vectors)
        if self.encoding.record.add:
            x = self.encoding.add(x, positions)
        x, _ = self.through("layers", self.blocks, read, drop(x, self.layer.dropout_at("embeddings", 0, dropout)), None)
        return self.read_out(self.last_norm(x, valid, dropout is not None) if self.layer.norm_first else x)

    def _encoding(self) -> PositionEncoding:
        return self.layer.encoding("positions", self.positions, "decoder", self.max_length)
