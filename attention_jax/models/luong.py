"""Luong et al. 2015: global and local attention queried by the decoder's new state, with input feeding."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.models.recurrent import (
    Advance,
    DecoderState,
    Memory,
    Output,
    RecurrentTranslator,
    Word,
    advance_layers,
)
from attention_jax.modules.logits import logits_layer
from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.local import local_attend_with_weights, predicted_centre
from attention_jax.ops.masking import valid_lens_mask
from attention_jax.ops.pooling import attend_with_weights
from attention_jax.ops.scoring import SCORES, location
from attention_jax.ops.shapes import require_choice

LUONG_SCORES = ("dot", "bilinear", "concat", "location")
SPANS = ("global", "local_m", "local_p")


class Luong(RecurrentTranslator, kw_only=True):
    """h̃ = tanh(W_c [c; h]) predicts the next word, c pooled by attention that the new state h asks (eqs. 5, 6).

    `span` is "global", or a `window` D of keys on either side of the word's own place ("local_m") or of a predicted
    one ("local_p", §3.2). `score` is "dot", "bilinear" (their "general"), "concat", or "location", which has room for
    `max_length` words. With `input_feeding` h̃ is read beside the next word (§3.3).
    """

    score: str
    span: str
    window: int
    max_length: int
    input_feeding: bool

    def __post_init__(self):
        require_choice("score", self.score, LUONG_SCORES)
        require_choice("span", self.span, SPANS)
        if self.score == "location" and self.span != "global":
            raise ValueError(f"span={self.span!r}: the location score is for span='global'.")
        if self.score == "dot" and self.bidirectional:
            raise ValueError("score='dot': compares equal sizes, and bidirectional=True doubles the memory's.")
        for name in ("window", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: needs 1 or more.")
        super().__post_init__()

    @property
    def room(self) -> int | None:
        return self.max_length if self.score == "location" else None

    @property
    def feed_size(self) -> int:
        return self.hidden if self.input_feeding else 0

    def prepare(self) -> None:
        glorot = nn.initializers.glorot_uniform()
        if self.score == "location":
            self.score_params = (self.param("w", glorot, (self.hidden, self.max_length), self.param_dtype),)
        else:
            self.score_params = SCORES[self.score].init_with(
                self.param, self.hidden, self.memory_size, self.hidden, self.param_dtype
            )
        self.centre_params: tuple[Array, ...] = ()
        if self.span == "local_p":
            self.centre_params = (
                self.param("w_p", glorot, (self.hidden, self.hidden), self.param_dtype),
                self.param("v_p", nn.initializers.normal(self.hidden**-0.5), (self.hidden,), self.param_dtype),
            )
        self.w_c = self.param("w_c", glorot, (self.memory_size + self.hidden, self.hidden), self.param_dtype)
        self.logits = logits_layer(self.target_vocabulary, **self.types)

    def keys_of(self, values: Float[Array, "batch s v"]) -> Float[Array, "batch s h"]:
        return _project(values, self._projected().w_k)

    def first_feed(self, memory: Memory) -> Array | None:
        return jnp.zeros((len(memory.lengths), self.hidden), self.dtype) if self.input_feeding else None

    def advance(self, memory: Memory) -> Advance:
        layers, w_feed = self.layer_weights()
        w_c = self.w_c.astype(self.dtype)
        look = self._looker(memory)

        def advance(state: DecoderState, word: Word) -> tuple[DecoderState, Output]:
            gates = word.gates if state.feed is None else word.gates + state.feed @ w_feed
            advanced = advance_layers(self.cell, layers, state.layers, gates, word.layer_masks)
            hidden = advanced[-1][0]
            context_Bx1xV, weights_Bx1xS = look(hidden[:, None, :], word)
            context = context_Bx1xV[:, 0]
            attentional = jnp.tanh(jnp.concatenate([context, hidden], axis=-1) @ w_c)
            state = DecoderState(advanced, attentional if self.input_feeding else None)
            return state, Output(attentional, context, weights_Bx1xS[:, 0])

        return advance

    def readout(self, output: Output, embedded: Array, dropout: Dropout | None) -> Float[Array, "... v"]:
        del embedded
        return self.logits(drop(output.hidden, dropout))

    def _looker(self, memory: Memory):
        """(state [batch, 1, h], word) → context and weights."""
        projected = self._projected()
        mask = valid_lens_mask(memory.lengths, memory.keys.shape[-2])
        centre_params = [array.astype(self.dtype) for array in self.centre_params]

        def look(query, word: Word):
            asked = {
                "query": _project(query, projected.w_q),
                "key": memory.keys,
                "value": memory.values,
                "score": projected.apply,
                "score_params": projected.params,
                "mask": mask,
                "dropout": word.attention_dropout,
            }
            if self.score == "location":
                w = self.score_params[0].astype(self.dtype)
                return attend_with_weights(**asked, bias=location(query, w, memory.keys.shape[-2]))
            if self.span == "global":
                return attend_with_weights(**asked)
            if self.span == "local_m":
                centre = word.position[:, None].astype(jnp.float32)
                return local_attend_with_weights(**asked, centre=centre, window=self.window)
            centre = predicted_centre(query, memory.lengths, *centre_params)
            return local_attend_with_weights(**asked, centre=centre, window=self.window, is_gaussian=True)

        return look

    def _projected(self):
        if self.score == "location":
            return SCORES["zero"].projected(self.hidden)
        params = (array.astype(self.dtype) for array in self.score_params)
        return SCORES[self.score].projected(self.hidden, *params)


def _project(x: Array, matrix: Array | None) -> Array:
    return x if matrix is None else x @ matrix
