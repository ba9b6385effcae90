"""A Transformer language model: each token is predicted from the tokens before it, at positions that are given."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention_jax.modules.attention import (
    NO_EDITS,
    UNCHANGED,
    Edits,
    Heads,
    batch_first,
    require_gates,
    require_layers,
)
from attention_jax.modules.embedding import Embedding
from attention_jax.modules.logits import logits_layer, tied_logits
from attention_jax.modules.normalization import Norm
from attention_jax.modules.positions import PositionEncoding, QueryKeyPositions
from attention_jax.modules.reading import PLAIN, Look, Reading, look_at
from attention_jax.modules.stacking import Layered
from attention_jax.modules.transformer import EncoderLayer, LayerSpec
from attention_jax.ops.cache import Cache, by_layer, of_layers, within_room
from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.masking import Mask, causal_mask, combine, keys_mask, segment_mask
from attention_jax.ops.placing import over_features
from attention_jax.ops.positions import require_room
from attention_jax.ops.statistics import Statistics, Summary

KIND = "decoder"  # of attention: the only one
STACK = "layers"  # of layers: the only one


class LanguageModel(Layered, kw_only=True):
    """Causal layers over embeddings and positions; if `is_tied`, embeddings and logits share one matrix.

    `positions` names the encoding; `max_length` is the number of positions of an encoding with a table. `layer` has the
    other fields of a config.
    """

    vocabulary: int
    layers: int
    positions: str
    max_length: int
    is_tied: bool
    layer: LayerSpec

    @classmethod
    def of(cls, **flat: Any) -> "LanguageModel":
        """The model of a config's section: its own fields and those of `LayerSpec`, side by side."""
        return cls(**LayerSpec.split(flat))

    def __post_init__(self):
        for name in ("vocabulary", "layers", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: needs 1 or more.")
        self.layer.check()
        self.layer.require_read()
        self.layer.require_unset(
            ("cross_score", "cross_normalize", "cross_family"), "a language model has no attention to a source"
        )
        self.new_encoding()
        super().__post_init__()

    def setup(self):
        types = self.layer.types
        self.embedding = Embedding(
            self.vocabulary, self.layer.width, embedding_init=nn.initializers.normal(self.layer.width**-0.5), **types
        )
        self.encoding = self.new_encoding()
        own = self.encoding.of_layers(self.layers)
        self.blocks = [EncoderLayer(self.layer, one, name=f"layer_{layer}") for layer, one in enumerate(own)]
        if self.layer.norm_first:
            self.last_norm = Norm(self.layer.norm, self.layer.param_dtype)
        if not self.is_tied:
            self.logits = logits_layer(self.vocabulary, **types)

    @property
    def backend(self) -> str:
        return self.layer.backend

    def new_encoding(self) -> PositionEncoding:
        """The encoding that `positions` names, without parameters yet."""
        return self.layer.encoding("positions", self.positions, KIND, self.max_length)

    def require_room(self, length: int) -> None:
        """Raise ValueError where the encoding or the score has no room for a text of `length` tokens."""
        encoding = self.new_encoding()
        require_room(self.positions, encoding.record, encoding.sizes, length, "positions")
        self.layer.of_self.require_room(length)

    @property
    def score_room(self) -> int | None:
        """The longest text that the score has room for; None: any."""
        return self.layer.of_self.attention().score.room

    def __call__(
        self,
        tokens: Int[Array, "batch t"],
        positions: Int[Array, "#batch t"] | None = None,
        segments: Int[Array, "batch t"] | None = None,
        dropout: Dropout | None = None,
        valid: Bool[Array, "batch t"] | None = None,
        edits: Edits = NO_EDITS,
    ) -> Float[Array, "batch t v"]:
        """Logits of every next token.

        `positions` are 0, 1, … unless given. If each row is one text, `valid` is False for padding, on either side. If
        rows are packed, tokens attend within their segment alone, and segment 0 is padding. With neither, nothing is
        padding. No token reads padding, and no batch norm counts it. `edits` change the heads of kind "decoder"; their
        arrays have layers as the first axis.

        Raises ValueError for both `segments` and `valid`, for a text that the encoding has no room for, and for
        segments with a mixer that does not attend.
        """
        return self._read(tokens, positions, segments, dropout, valid, edits)[0]

    def attention(
        self,
        tokens: Int[Array, "batch t"],
        positions: Int[Array, "#batch t"] | None = None,
        segments: Int[Array, "batch t"] | None = None,
        edits: Edits = NO_EDITS,
    ) -> dict[str, Heads]:
        """{"decoder": what every head does}: weights `[batch, layers, heads, T, T]`, outputs `[…, T, F]`.

        Raises ValueError for a mixer that does not attend.
        """
        return self._shown(tokens, positions, segments, edits, Look(with_heads=True))

    def statistics(
        self,
        tokens: Int[Array, "batch t"],
        positions: Int[Array, "#batch t"] | None = None,
        segments: Int[Array, "batch t"] | None = None,
        edits: Edits = NO_EDITS,
        *,
        top: int = 4,
        parts: Int[Array, "#batch t"] | None = None,
        num_parts: int = 0,
    ) -> dict[str, Statistics]:
        """{"decoder": statistics of every head's weights}, `[batch, layers, heads, T, …]`, for texts of any length.

        No map of weights is made: memory grows with T and not with its square. `top`, `parts` and `num_parts` are those
        of a `Summary`; the first key is that of each segment. Raises ValueError for a mixer that does not attend.
        """
        places = _places(tokens, segments)
        summary = Summary(top, num_parts, parts, places, places)
        return self._shown(tokens, positions, segments, edits, Look(summary=summary))

    def _shown(
        self, tokens: Array, positions: Array | None, segments: Array | None, edits: Edits, look: Look
    ) -> dict[str, Any]:
        if not self.layer.mixing.attends:
            raise ValueError(f"mixer={self.layer.mixer!r}: has no attention to show.")
        return {KIND: batch_first(self._read(tokens, positions, segments, edits=edits, look=look)[1])}

    def init_cache(self, positions: Int[Array, "batch room"]) -> Cache:
        """The cache before the first token of texts whose tokens will have these `positions`."""
        history, state = of_layers([block.init_cache(*positions.shape) for block in self.each(STACK, self.blocks)])
        return Cache(positions, state, jnp.zeros(len(positions), jnp.int32), history)

    def step(
        self, tokens: Int[Array, " batch"], cache: Cache, edits: Edits = NO_EDITS
    ) -> tuple[Float[Array, "batch v"], Cache]:
        """Logits of the token after `tokens`, NaN if the cache has no room for these, and the cache with them."""
        return self.extend(tokens[:, None], jnp.ones_like(tokens), cache, edits)

    def extend(
        self,
        tokens: Int[Array, "batch t"],
        counts: Int[Array, " batch"],
        cache: Cache,
        edits: Edits = NO_EDITS,
    ) -> tuple[Float[Array, "batch v"], Cache]:
        """Read the first `counts` of each row's tokens in one pass, as so many steps would.

        Gives the logits of the token after the last of them, NaN if the cache has no room for these, and the cache with
        them. Where nothing is read, logits mean nothing. Raises ValueError for `edits` that are more than gates.
        """
        require_gates(edits)
        require_layers(edits, {KIND: self.layers})
        length, room = tokens.shape[-1], cache.memory.shape[-1]
        index = jnp.minimum(cache.cursor[:, None] + jnp.arange(length)[None], room - 1)
        now = jnp.take_along_axis(cache.memory, index, axis=1)
        reading, valid = self._reading(now, cache), jnp.arange(length)[None] < counts[:, None]
        x, kept = self._embed(tokens, now, None), []
        layers = zip(self.each(STACK, self.blocks), by_layer(cache.history, cache.state), strict=True)
        for layer, (block, held) in enumerate(layers):
            x, held, _ = block(x, valid, reading._replace(held=held), None, look_at(edits, KIND, layer))
            kept.append(held)
        last = jnp.take_along_axis(x, jnp.maximum(counts - 1, 0)[:, None, None], axis=1)
        last = within_room(last, cache.cursor + counts - 1, room)
        history, state = of_layers(kept)
        read = Cache(cache.memory, state, cache.cursor + counts, history)
        return self._logits(last, valid[:, :1], False)[:, 0], read

    def _reading(self, now: Int[Array, "batch t"], cache: Cache) -> Reading:
        """How layers read a cache, and the next tokens of its texts, which have the positions `now`."""
        length, room, pattern = now.shape[-1], cache.memory.shape[-1], self.layer.of_pattern
        queries, keys = cache.cursor[:, None] + jnp.arange(length)[None], jnp.arange(room)[None]
        if pattern.stream is None:
            mask = combine(causal_mask(length, room, cache.cursor), pattern.mask(queries, keys))
            return Reading(mask, QueryKeyPositions(now, cache.memory), first=cache.cursor)
        keys = jnp.concatenate([pattern.stream.places(cache.cursor), queries], axis=1)
        positions = jnp.take_along_axis(cache.memory, jnp.minimum(keys, room - 1), axis=1)
        return Reading(pattern.mask(queries, keys), QueryKeyPositions(now, positions), first=cache.cursor)

    def _read(
        self,
        tokens: Array,
        positions: Array | None,
        segments: Array | None,
        dropout: Dropout | None = None,
        valid: Array | None = None,
        edits: Edits = NO_EDITS,
        look: Look = PLAIN,
    ) -> tuple[Array, Any]:
        require_layers(edits, {KIND: self.layers})
        length = tokens.shape[-1]
        if positions is None:
            self.require_room(length)
            positions = jnp.arange(length)[None]
        mask, valid = self._mask(tokens, segments, valid)
        reading = Reading(mask, QueryKeyPositions(positions, positions))

        def read(block, x, index, edit):
            x, _, shown = block(
                x, valid, reading, dropout and dropout.fold(1000 + index), look._replace(edit=edit, depth=index)
            )
            return x, shown

        x = self._embed(tokens, positions, dropout)
        x, shown = self.through(STACK, self.blocks, read, x, edits.get(KIND, UNCHANGED))
        return self._logits(x, valid, dropout is not None), shown

    def _mask(self, tokens: Array, segments: Array | None, valid: Array | None) -> tuple[Mask | None, Array]:
        """The mask of attention, and which tokens are not padding."""
        if segments is not None:
            if valid is not None:
                raise ValueError("segments and valid are both given: give segments alone, where padding is segment 0.")
            if not self.layer.mixing.attends:
                raise ValueError(f"mixer={self.layer.mixer!r}: reads each row as one text; give `valid`, not segments.")
            valid = segments > 0
        places = _places(tokens, segments, valid)
        mask = combine(mask_of(tokens.shape[-1], segments, valid), self.layer.of_pattern.mask(places, places))
        return mask, jnp.ones_like(tokens, bool) if valid is None else valid

    def _embed(self, tokens: Array, positions: Array, dropout: Dropout | None) -> Array:
        x = self.embedding(tokens) * math.sqrt(self.layer.width)
        if self.encoding.record.add:
            x = self.encoding.add(x, positions)
        return drop(x, self.layer.dropout_at("embeddings", 0, dropout))

    def _logits(self, x: Array, valid: Array, is_training: bool) -> Array:
        if self.layer.norm_first:
            x = self.last_norm(x, valid, is_training)
        logits = tied_logits(self.embedding, x) if self.is_tied else self.logits(x)
        return over_features(logits)


def _places(
    tokens: Int[Array, "batch t"], segments: Int[Array, "batch t"] | None, valid: Bool[Array, "batch t"] | None = None
) -> Int[Array, "#batch t"]:
    """Where each token stands among those of its text that are valid, or in its segment of a packed row."""
    index = jnp.arange(tokens.shape[-1])[None]
    if segments is None:
        return index if valid is None else jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)
    begins = segments != jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=1)


def mask_of(
    length: int, segments: Int[Array, "batch t"] | None = None, valid: Bool[Array, "batch t"] | None = None
) -> Mask | None:
    """The keys that a token may attend to: those before it that are valid, of its own segment."""
    by_segment = None if segments is None else segment_mask(segments, segments)
    return combine(causal_mask(length, length), by_segment, None if valid is None else keys_mask(valid))
