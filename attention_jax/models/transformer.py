"""Vaswani et al. 2017: an encoder–decoder of attention alone."""

import functools
import math
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention_jax.modules.attention import KeyValue
from attention_jax.modules.normalization import NORMS, Norm
from attention_jax.modules.transformer import ACTIVATIONS, SITES, DecoderLayer, EncoderLayer, LayerSpec
from attention_jax.ops.cache import Cache
from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.masking import causal_mask, valid_lens_mask
from attention_jax.ops.positions import ENCODINGS
from attention_jax.ops.shapes import require_choice

SHARED = ("none", "target", "all")
ADDED = ("none", "sinusoidal", "binary")  # the encodings that need nothing of its layers
PADDING = 0  # the word that a batch norm leaves out of a target's moments; no other part needs to know it


class Memory(NamedTuple):
    """The source as each decoder layer's cross-attention reads it."""

    layers: tuple[KeyValue, ...]
    lengths: Int[Array, " batch"]


class Transformer(nn.Module, kw_only=True):
    """Encoder and decoder layers over embeddings, scaled by √width, and positions.

    `shared` uses one matrix for the "target" embedding and the logits, or for "all" three (§3.4), which needs
    one vocabulary. With `norm_first` the encoder and the decoder end in a norm. The rest is `LayerSpec`'s.
    """

    source_vocabulary: int
    target_vocabulary: int
    encoder_layers: int
    decoder_layers: int
    width: int
    heads: int
    kv_heads: int
    qk_norm: bool
    feed_forward: int
    activation: str
    gated: bool
    norm: str
    norm_first: bool
    encoding: str
    shared: str
    dropout_sites: tuple[str, ...]
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32

    def __post_init__(self):
        for name in ("encoder_layers", "decoder_layers", "width", "heads", "kv_heads", "feed_forward"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: needs 1 or more.")
        choices = {"activation": ACTIVATIONS, "norm": NORMS, "encoding": ADDED, "shared": SHARED}
        for name, known in choices.items():
            require_choice(name, getattr(self, name), tuple(known))
        for site in self.dropout_sites:
            require_choice("dropout_sites", site, SITES)
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"heads={self.heads} must divide width={self.width}, and kv_heads={self.kv_heads} must divide heads."
            )
        if self.encoding == "sinusoidal" and self.width % 2:
            raise ValueError(f"width={self.width}: encoding='sinusoidal' needs an even one.")
        if self.shared == "all" and self.source_vocabulary != self.target_vocabulary:
            raise ValueError(
                f"shared='all' needs one vocabulary, and there are {self.source_vocabulary:,} and "
                f"{self.target_vocabulary:,} entries: set data.joint_vocabulary=True, or model.kwargs.shared='target'."
            )
        super().__post_init__()

    def setup(self):
        embed = functools.partial(
            nn.Embed,
            features=self.width,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            embedding_init=nn.initializers.normal(self.width**-0.5),
        )
        self.target_embedding = embed(self.target_vocabulary)
        if self.shared != "all":
            self.source_embedding = embed(self.source_vocabulary)
        if self.shared == "none":
            self.logits = nn.Dense(self.target_vocabulary, dtype=self.dtype, param_dtype=self.param_dtype)
        self.encoders = [EncoderLayer(self.spec, name=f"encoder_{layer}") for layer in range(self.encoder_layers)]
        self.decoders = [DecoderLayer(self.spec, name=f"decoder_{layer}") for layer in range(self.decoder_layers)]
        if self.norm_first:
            self.encoder_norm, self.decoder_norm = (Norm(self.norm, self.param_dtype) for _ in range(2))

    @property
    def spec(self) -> LayerSpec:
        return LayerSpec(**{name: getattr(self, name) for name in LayerSpec._fields})

    def __call__(
        self,
        source: Int[Array, "batch s"],
        lengths: Int[Array, " batch"],
        inputs: Int[Array, "batch t"],
        dropout: Dropout | None = None,
    ) -> Float[Array, "batch t v"]:
        """Logits of every next word, teacher forced."""
        return self.decode(self.encode(source, lengths, dropout), inputs, dropout)

    def encode(
        self, source: Int[Array, "batch s"], lengths: Int[Array, " batch"], dropout: Dropout | None = None
    ) -> Memory:
        """The source's memory; positions at or past a sentence's length are padding."""
        return self._encode(source, lengths, dropout)[0]

    def decode(
        self, memory: Memory, inputs: Int[Array, "batch t"], dropout: Dropout | None = None
    ) -> Float[Array, "batch t v"]:
        """Logits of every next word, teacher forced."""
        return self._teach(memory, inputs, dropout)[0]

    def attention(
        self, source: Int[Array, "batch s"], lengths: Int[Array, " batch"], inputs: Int[Array, "batch t"]
    ) -> dict[str, Float[Array, "batch l h q k"]]:
        """Weights of one teacher-forced pass: "encoder", "decoder" and "cross", `[batch, layers, heads, Q, K]`."""
        memory, encoder = self._encode(source, lengths, None)
        found = self._teach(memory, inputs, None)[1]
        return {"encoder": jnp.stack(encoder, 1)} | {
            kind: jnp.stack([weights[kind] for weights in found], 1) for kind in ("decoder", "cross")
        }

    def init_cache(self, memory: Memory, max_length: int) -> Cache:
        """The cache before the first word, with room for `max_length`."""
        shape = (len(memory.lengths), self.kv_heads, max_length, self.width // self.heads)
        empty = KeyValue(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))
        return Cache(memory, (empty,) * self.decoder_layers, jnp.zeros(memory.lengths.shape, jnp.int32))

    def step(self, tokens: Int[Array, " batch"], cache: Cache) -> tuple[Float[Array, "batch v"], Cache]:
        """Logits of the word after `tokens`, and the cache that has read them."""
        room = cache.state[0].key.shape[-2]
        is_here = (jnp.arange(room)[None, :] == cache.cursor[:, None])[:, None, :, None]
        written = []
        x = self._embed(self.target_embedding, tokens[:, None], cache.cursor[:, None], None, 1)
        for layer, held, memory in zip(self.decoders, cache.state, cache.memory.layers, strict=True):
            x, held, _ = layer(
                x,
                jnp.ones(x.shape[:2], bool),
                functools.partial(_write, held, is_here),
                causal_mask(1, room, cache.cursor),
                memory,
                valid_lens_mask(cache.memory.lengths, memory.key.shape[-2]),
            )
            written.append(held)
        return self._logits(x, jnp.ones(x.shape[:2], bool), False)[:, 0], Cache(
            cache.memory, tuple(written), cache.cursor + 1
        )

    def _encode(self, source: Array, lengths: Array, dropout: Dropout | None) -> tuple[Memory, list[Array]]:
        valid = jnp.arange(source.shape[-1])[None, :] < lengths[:, None]
        table = self.target_embedding if self.shared == "all" else self.source_embedding
        x = self._embed(table, source, jnp.arange(source.shape[-1])[None, :], dropout, 0)
        found = []
        for index, layer in enumerate(self.encoders):
            x, weights = layer(x, valid, dropout and dropout.fold(1000 + index))
            found.append(weights)
        if self.norm_first:
            x = self.encoder_norm(x, valid, dropout is not None)
        return Memory(tuple(layer.project_memory(x) for layer in self.decoders), lengths), found

    def _teach(self, memory: Memory, inputs: Array, dropout: Dropout | None) -> tuple[Array, list[dict[str, Array]]]:
        valid = (inputs != PADDING) & (memory.lengths > 0)[:, None]
        x = self._embed(self.target_embedding, inputs, jnp.arange(inputs.shape[-1])[None, :], dropout, 1)
        found = []
        for index, (layer, keys_values) in enumerate(zip(self.decoders, memory.layers, strict=True)):
            x, _, weights = layer(
                x,
                valid,
                lambda own: own,
                causal_mask(inputs.shape[-1], inputs.shape[-1]),
                keys_values,
                valid_lens_mask(memory.lengths, keys_values.key.shape[-2]),
                dropout and dropout.fold(2000 + index),
            )
            found.append(weights)
        return self._logits(x, valid, dropout is not None), found

    def _embed(self, table: nn.Embed, tokens: Array, positions: Array, dropout: Dropout | None, place: int) -> Array:
        x = table(tokens) * math.sqrt(self.width)
        add = ENCODINGS[self.encoding].add
        return drop(x if add is None else add(None, x, positions), self.spec.site(dropout, "embeddings", place))

    def _logits(self, x: Array, valid: Bool[Array, "batch t"], is_training: bool) -> Float[Array, "batch t v"]:
        if self.norm_first:
            x = self.decoder_norm(x, valid, is_training)
        return self.logits(x) if self.shared == "none" else self.target_embedding.attend(x)


def _write(held: KeyValue, is_here: Bool[Array, "batch 1 room 1"], new: KeyValue) -> KeyValue:
    return KeyValue(*(jnp.where(is_here, one, many) for one, many in zip(new, held, strict=True)))
