"""The Transformer of Vaswani et al. 2017: an encoder–decoder of attention alone."""

import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention_jax.modules.attention import (
    NO_EDITS,
    UNCHANGED,
    Edits,
    Heads,
    KeyValue,
    batch_first,
    require_gates,
    require_layers,
)
from attention_jax.modules.embedding import Embedding
from attention_jax.modules.families import PLAIN as PLAIN_FAMILY
from attention_jax.modules.families import make_family
from attention_jax.modules.logits import logits_layer, tied_logits
from attention_jax.modules.mixers import attends, is_window, make_mixer
from attention_jax.modules.normalization import Norm
from attention_jax.modules.positions import PositionEncoding, QueryKeyPositions
from attention_jax.modules.reading import PLAIN, Look, Reading, look_at
from attention_jax.modules.stacking import Layered
from attention_jax.modules.transformer import DecoderLayer, EncoderLayer, LayerSpec
from attention_jax.ops.cache import Cache, by_layer, of_layers, within_room
from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.masking import Mask, causal_mask, combine, valid_lens_mask
from attention_jax.ops.patterns import ALL
from attention_jax.ops.placing import over_features
from attention_jax.ops.positions import require_room
from attention_jax.ops.shapes import require_choice
from attention_jax.ops.statistics import Statistics, Summary

SHARED = ("none", "target", "all")
KINDS = ("encoder", "decoder")  # of self-attention
READING = ("decoder", "cross")  # the kinds of a decoder's layer
PADDING = 0  # the token that a batch norm leaves out of a target's moments; no other part needs to know it


class Memory(NamedTuple):
    """The encoded source, and the sources' lengths."""

    encoded: Float[Array, "batch s d"]
    lengths: Int[Array, " batch"]


class Projected(NamedTuple):
    """A memory as cached decoding reads it: each decoder layer's keys and values for cross-attention."""

    layers: tuple[KeyValue, ...]
    lengths: Int[Array, " batch"]


class Own(NamedTuple):
    """The state of cached decoding: a text's lane at every time, and what decoder layers hold that is its own."""

    lanes: Int[Array, "batch *texts room"]
    layers: tuple


class Transformer(Layered, kw_only=True):
    """Encoder and decoder layers over embeddings, scaled by √width, and positions.

    - `encoder_positions`, `decoder_positions`: the encodings of self-attention; `max_length` is the number of positions
      of encodings with a table. Randomized positions are refused: only a language model has them.
    - `encoder_mixer`, `encoder_family`, `encoder_pattern`: the `mixer`, `family` and `pattern` of encoder layers; those
      without `encoder_` are the decoder's.
    - `shared`: what shares one matrix. "none"; "target": the target's embedding and the logits; "all": these and the
      source's embedding (§3.4), which needs one vocabulary.
    - `layer`: the other fields of a config. With its `norm_first`, encoder and decoder end in a norm.
    """

    source_vocabulary: int
    target_vocabulary: int
    encoder_layers: int
    decoder_layers: int
    encoder_positions: str
    decoder_positions: str
    max_length: int
    encoder_mixer: str
    shared: str
    layer: LayerSpec
    encoder_family: str = PLAIN_FAMILY
    encoder_pattern: str = ALL

    @classmethod
    def of(cls, **flat: Any) -> "Transformer":
        """The model of a config's section: its own fields and those of `LayerSpec`, side by side."""
        return cls(**LayerSpec.split(flat))

    def __post_init__(self):
        for name in ("encoder_layers", "decoder_layers", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: needs 1 or more.")
        require_choice("shared", self.shared, SHARED)
        make_mixer(self.encoder_mixer, "encoder_mixer")
        make_family(self.encoder_family, "encoder_family", "encoder")
        if not attends(self.encoder_mixer) and self.encoder_family != PLAIN_FAMILY:
            raise ValueError(
                f"encoder_family={self.encoder_family!r}: encoder_mixer={self.encoder_mixer!r} has no attention to "
                f"read it. Set encoder_family={PLAIN_FAMILY!r}."
            )
        if not attends(self.layer.mixer):
            because = f"mixer={self.layer.mixer!r} has no attention to read it"
            self.layer.require_unset(("family",), because)
            if not attends(self.encoder_mixer):  # attention to the source is the only one, and may have its own names
                unread = [name for name in ("score", "normalize") if getattr(self.layer, f"cross_{name}")]
                self.layer.require_unset(tuple(unread), "nothing but attention to the source would read it")
        self._check_patterns()
        for kind in KINDS:
            self._spec(kind).check()
            if self._encoding(kind).record.sample_positions:
                text = self._positions(kind)
                raise ValueError(f"{kind}_positions={text!r}: only a language model draws positions at random.")
        if is_window(self.layer.mixer):
            raise ValueError(
                f"mixer={self.layer.mixer!r}: an encoder's alone; a decoder has no window. See encoder_mixer."
            )
        if self.shared == "all" and self.source_vocabulary != self.target_vocabulary:
            raise ValueError(
                f"shared='all': needs one vocabulary, and there are two, of {self.source_vocabulary:,} and "
                f"{self.target_vocabulary:,} entries. Choose shared='target', or give both the same."
            )
        super().__post_init__()

    def setup(self):
        width, types = self.layer.width, self.layer.types
        embed = functools.partial(
            Embedding, features=width, embedding_init=nn.initializers.normal(width**-0.5), **types
        )
        self.target_embedding = embed(num_embeddings=self.target_vocabulary)
        if self.shared != "all":
            self.source_embedding = embed(num_embeddings=self.source_vocabulary)
        if self.shared == "none":
            self.logits = logits_layer(self.target_vocabulary, **self.layer.types)
        self.encoder_encoding, self.decoder_encoding = map(self._encoding, KINDS)
        own = self.encoder_encoding.of_layers(self.encoder_layers), self.decoder_encoding.of_layers(self.decoder_layers)
        encoding, decoding = map(self._spec, KINDS)
        self.encoders = [EncoderLayer(encoding, one, name=f"encoder_{layer}") for layer, one in enumerate(own[0])]
        self.decoders = [DecoderLayer(decoding, one, name=f"decoder_{layer}") for layer, one in enumerate(own[1])]
        if self.layer.norm_first:
            self.encoder_norm, self.decoder_norm = (Norm(self.layer.norm, self.layer.param_dtype) for _ in range(2))

    @property
    def backend(self) -> str:
        return self.layer.backend

    @property
    def room(self) -> int | None:
        """The longest text that its encodings and scores have room for; None: any."""
        encodings = [encoding.record.max_length(encoding.sizes) for encoding in map(self._encoding, KINDS)]
        scores = [spec.attention().score.room for spec in (self.layer.of_self, self.layer.of_cross)]
        return min((most for most in (*encodings, *scores) if most is not None), default=None)

    def require_texts(self, count: int) -> None:
        """Raise ValueError where so many hypotheses of a sentence cannot be written side by side."""
        if count > 1 and self.layer.of_self.attention().score.room is not None:
            raise ValueError(
                f"score={self.layer.score!r}: scores a key by where it stands, and those of {count} hypotheses stand "
                "side by side. Search with one beam, or choose another score."
            )

    def _spec(self, kind: str) -> LayerSpec:
        if kind == "encoder":
            own = self.layer._replace(mixer=self.encoder_mixer, family=self.encoder_family)
            return own._replace(pattern=self.encoder_pattern)
        return self.layer

    def _check_patterns(self) -> None:
        for kind, of in zip(KINDS, ("encoder_", ""), strict=True):
            spec = self._spec(kind)
            spec.check_pattern(of)
            if spec.of_pattern.stream is not None:
                raise ValueError(
                    f"{of}pattern={spec.pattern!r}: a language model's alone; a sentence is no stream. Choose local."
                )

    def _masked(self, kind: str, mask: Mask, positions: QueryKeyPositions) -> Mask | None:
        """The mask, and what the pattern of this kind forbids; a sentence's positions are its places."""
        return combine(mask, self._spec(kind).of_pattern.mask(*positions))

    def _positions(self, kind: str) -> str:
        return getattr(self, f"{kind}_positions")

    def _encoding(self, kind: str) -> PositionEncoding:
        return self._spec(kind).encoding(f"{kind}_positions", self._positions(kind), kind, self.max_length)

    def _require_room(self, kind: str, length: int) -> None:
        encoding = self._encoding(kind)
        require_room(self._positions(kind), encoding.record, encoding.sizes, length, f"{kind}_positions")

    @property
    def depths(self) -> dict[str, int]:
        """How many layers each kind of attention has."""
        return {"encoder": self.encoder_layers, **dict.fromkeys(READING, self.decoder_layers)}

    def __call__(
        self,
        source: Int[Array, "batch s"],
        lengths: Int[Array, " batch"],
        inputs: Int[Array, "batch t"],
        dropout: Dropout | None = None,
        edits: Edits = NO_EDITS,
    ) -> Float[Array, "batch t v"]:
        """Logits of every next token, teacher forced. `edits` change heads, by kind: "encoder", "decoder", "cross"."""
        return self.decode(self.encode(source, lengths, dropout, edits), inputs, dropout, edits)

    def encode(
        self,
        source: Int[Array, "batch s"],
        lengths: Int[Array, " batch"],
        dropout: Dropout | None = None,
        edits: Edits = NO_EDITS,
    ) -> Memory:
        """The source's memory; tokens from a sentence's length on are padding."""
        return self._encode(source, lengths, dropout, edits)[0]

    def decode(
        self, memory: Memory, inputs: Int[Array, "batch t"], dropout: Dropout | None = None, edits: Edits = NO_EDITS
    ) -> Float[Array, "batch t v"]:
        """Logits of every next token, teacher forced."""
        return self._teach(memory, inputs, dropout, edits)[0]

    def attention(
        self,
        source: Int[Array, "batch s"],
        lengths: Int[Array, " batch"],
        inputs: Int[Array, "batch t"],
        edits: Edits = NO_EDITS,
    ) -> dict[str, Heads]:
        """What each head does in one teacher-forced pass, by kind; without those whose mixer does not attend.

        Weights are `[batch, layers, heads, Q, K]`, outputs `[batch, layers, heads, Q, F]`.
        """
        return self._shown(source, lengths, inputs, edits, Look(with_heads=True))

    def statistics(
        self,
        source: Int[Array, "batch s"],
        lengths: Int[Array, " batch"],
        inputs: Int[Array, "batch t"],
        edits: Edits = NO_EDITS,
        *,
        top: int = 4,
    ) -> dict[str, Statistics]:
        """Statistics of the weights that `attention` gives, by kind, `[batch, layers, heads, Q, …]`.

        No map of weights is made: memory does not grow with the square of a length. `top` is that of a `Summary`.
        """
        return self._shown(source, lengths, inputs, edits, Look(summary=Summary(top)))

    def _shown(self, source: Array, lengths: Array, inputs: Array, edits: Edits, look: Look) -> dict[str, Any]:
        memory, encoder = self._encode(source, lengths, None, edits, look)
        kinds = self._teach(memory, inputs, None, edits, look)[1] | {"encoder": encoder}
        return {kind: batch_first(shown) for kind, shown in kinds.items() if shown is not None}

    def init_cache(self, memory: Memory, max_length: int) -> Cache:
        """The cache before the first token, with room for `max_length` tokens."""
        self._require_room("decoder", max_length)
        batch, layers = len(memory.lengths), self.each("decoders", self.decoders)
        projected = Projected(tuple(layer.project_memory(memory.encoded) for layer in layers), memory.lengths)
        history, state = of_layers([layer.init_cache(batch, max_length) for layer in layers])
        lanes = jnp.zeros((batch, max_length), jnp.int32)
        return Cache(projected, Own(lanes, state), jnp.zeros(batch, jnp.int32), history)

    def step(
        self, tokens: Int[Array, "batch *texts"], cache: Cache, edits: Edits = NO_EDITS
    ) -> tuple[Float[Array, "batch *texts v"], Cache]:
        """Logits of the token after `tokens`, NaN if the cache has no room for these, and the cache with them.

        Tokens are a text's of each sentence, or of several that stand side by side in the cache; lanes say of each
        text and time which of the texts then was its own. Raises ValueError for `edits` that are more than gates.
        """
        require_gates(edits)
        require_layers(edits, self.depths)
        texts_BxG = tokens.reshape(len(tokens), -1)
        self.require_texts(texts_BxG.shape[-1])
        of_texts = lambda leaf: leaf.reshape(*texts_BxG.shape, *leaf.shape[tokens.ndim :])  # noqa: E731
        lanes_BxGxR, state = jax.tree.map(of_texts, cache.state)
        valid, room, cursor = jnp.ones_like(texts_BxG, bool), lanes_BxGxR.shape[-1], cache.cursor[:, None]
        lanes_BxGxR = _with_own_lanes(lanes_BxGxR, cursor)
        mask, positions = _of_own(lanes_BxGxR, cursor)
        first = cache.cursor * texts_BxG.shape[-1]
        reading = Reading(self._masked("decoder", mask, positions), positions, first=first)
        x = self._embed(self.target_embedding, texts_BxG, "decoder", reading.positions.queries, None)
        holding, kept = by_layer(cache.history or (), state), []
        layers = zip(self.each("decoders", self.decoders), holding, cache.memory.layers, strict=True)
        for index, (layer, held, memory) in enumerate(layers):
            known = valid_lens_mask(cache.memory.lengths, memory.key.shape[-2])
            looks = {kind: look_at(edits, kind, index) for kind in READING}
            x, held, _ = layer(x, valid, reading._replace(held=held), memory, known, None, looks)
            kept.append(held)
        logits = self._logits(within_room(x, cache.cursor, room), valid, False)
        history, state = of_layers(kept)
        own = jax.tree.map(lambda new, old: new.reshape(old.shape), Own(lanes_BxGxR, state), cache.state)
        return logits.reshape(*tokens.shape, -1), Cache(cache.memory, own, cache.cursor + 1, history)

    def _encode(
        self, source: Array, lengths: Array, dropout: Dropout | None, edits: Edits, look: Look = PLAIN
    ) -> tuple[Memory, Any]:
        require_layers(edits, self.depths)
        valid = jnp.arange(source.shape[-1])[None, :] < lengths[:, None]
        table = self.target_embedding if self.shared == "all" else self.source_embedding
        positions = _in_order(source)
        reading = Reading(self._masked("encoder", valid_lens_mask(lengths, source.shape[-1]), positions), positions)

        def read(layer, x, index, edit):
            x, _, shown = layer(
                x, valid, reading, dropout and dropout.fold(1000 + index), look._replace(edit=edit, depth=index)
            )
            return x, shown

        x = self._embed(table, source, "encoder", positions.queries, dropout)
        x, shown = self.through("encoders", self.encoders, read, x, edits.get("encoder", UNCHANGED))
        if self.layer.norm_first:
            x = self.encoder_norm(x, valid, dropout is not None)
        return Memory(x, lengths), shown

    def _teach(
        self, memory: Memory, inputs: Array, dropout: Dropout | None, edits: Edits, look: Look = PLAIN
    ) -> tuple[Array, dict[str, Any]]:
        require_layers(edits, self.depths)
        valid = (inputs != PADDING) & (memory.lengths > 0)[:, None]
        mask, positions = causal_mask(inputs.shape[-1], inputs.shape[-1]), _in_order(inputs)
        reading = Reading(self._masked("decoder", mask, positions), positions)
        known = valid_lens_mask(memory.lengths, memory.encoded.shape[-2])

        def read(layer, x, index, of_kinds):
            looks = {kind: look._replace(edit=edit, depth=index) for kind, edit in of_kinds.items()}
            projected, folded = layer.project_memory(memory.encoded), dropout and dropout.fold(2000 + index)
            x, _, shown = layer(x, valid, reading, projected, known, folded, looks)
            return x, shown

        x = self._embed(self.target_embedding, inputs, "decoder", reading.positions.queries, dropout)
        x, shown = self.through(
            "decoders", self.decoders, read, x, {kind: edits.get(kind, UNCHANGED) for kind in READING}
        )
        return self._logits(x, valid, dropout is not None), shown

    def _embed(self, table: Embedding, tokens: Array, kind: str, positions: Array, dropout: Dropout | None) -> Array:
        encoding = self.encoder_encoding if kind == "encoder" else self.decoder_encoding
        self._require_room(kind, tokens.shape[-1])
        x = table(tokens) * math.sqrt(self.layer.width)
        if encoding.record.add:
            x = encoding.add(x, positions)
        return drop(x, self.layer.dropout_at("embeddings", KINDS.index(kind), dropout))

    def _logits(self, x: Array, valid: Bool[Array, "batch t"], is_training: bool) -> Float[Array, "batch t v"]:
        if self.layer.norm_first:
            x = self.decoder_norm(x, valid, is_training)
        logits = self.logits(x) if self.shared == "none" else tied_logits(self.target_embedding, x)
        return over_features(logits)


def _with_own_lanes(lanes_BxGxR: Int[Array, "batch texts room"], cursor: Int[Array, "batch 1"]) -> Array:
    """The lanes with each text's own at the time of its next token."""
    is_now = jnp.arange(lanes_BxGxR.shape[-1])[None, None] == cursor[..., None]
    return jnp.where(is_now, jnp.arange(lanes_BxGxR.shape[-2])[None, :, None], lanes_BxGxR)


def _of_own(
    lanes_BxGxR: Int[Array, "batch texts room"], cursor: Int[Array, "batch 1"]
) -> tuple[Mask, QueryKeyPositions]:
    """What the next token of every text reads of the cache: what its own text has written, up to that token."""
    _, texts, room = lanes_BxGxR.shape
    time, lane = jnp.divmod(jnp.arange(room * texts), texts)
    is_own = jnp.repeat(lanes_BxGxR, texts, axis=-1) == lane[None, None]
    queries = jnp.broadcast_to(cursor, (len(cursor), texts))
    return is_own & (time[None, None] <= cursor[..., None]), QueryKeyPositions(queries, time[None])


def _in_order(tokens: Int[Array, "batch t"]) -> QueryKeyPositions:
    positions = jnp.arange(tokens.shape[-1])[None]
    return QueryKeyPositions(positions, positions)
