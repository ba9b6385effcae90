"""Bahdanau et al. 2015: a recurrent encoder–decoder that learns to align and translate jointly."""

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
from attention_jax.ops.masking import valid_lens_mask
from attention_jax.ops.pooling import attend_with_weights
from attention_jax.ops.scoring import SCORES
from attention_jax.ops.shapes import require_choice


class Bahdanau(RecurrentTranslator, kw_only=True):
    """Attention is queried by the decoder's last state, and its context read beside the word (A.1.2, A.2.2).

    Without `attends` the context is the encoder's last state at every step: the baseline of §5, of Cho et al.
    2014. `output` predicts from the decoder's "state", or "deep": a maxout layer over state, context and
    previous word.
    """

    output: str
    attends: bool = True

    def __post_init__(self):
        require_choice("output", self.output, ("state", "deep"))
        super().__post_init__()

    @property
    def feed_size(self) -> int:
        return self.memory_size

    def prepare(self) -> None:
        if self.attends:
            self.score = SCORES["additive"].init_with(
                self.param, self.hidden, self.memory_size, self.hidden, self.param_dtype
            )
        if self.output == "deep":
            self.deep = nn.Dense(2 * self.hidden, **self.types, name="readout")
        self.logits = logits_layer(self.target_vocabulary, **self.types)

    def keys_of(self, values: Float[Array, "batch s v"]) -> Float[Array, "batch s h"]:
        return values @ self.score[1].astype(self.dtype)

    def remember(self, values, lengths, summary, states) -> Memory:
        if self.attends:
            return super().remember(values, lengths, summary, states)
        return Memory(summary[:, :0], summary, lengths, states)

    def advance(self, memory: Memory) -> Advance:
        layers, w_context = self.layer_weights()
        look = self._looker(memory)

        def advance(state: DecoderState, word: Word) -> tuple[DecoderState, Output]:
            context, weights = look(state.layers[-1][0], word.attention_dropout)
            gates = word.gates + context @ w_context
            state = DecoderState(advance_layers(self.cell, layers, state.layers, gates, word.layer_masks), None)
            return state, Output(state.layers[-1][0], context, weights)

        return advance

    def readout(self, output: Output, embedded: Array, dropout: Dropout | None) -> Float[Array, "... v"]:
        top = output.hidden
        if self.output == "deep":
            top = self.deep(jnp.concatenate([top, output.context, embedded], axis=-1))
            top = jnp.maximum(*jnp.split(top, 2, axis=-1))
        return self.logits(drop(top, dropout))

    def _looker(self, memory: Memory):
        if not self.attends:
            return lambda query, dropout: (memory.values, None)
        projected = SCORES["additive"].projected(self.hidden, *(array.astype(self.dtype) for array in self.score))
        mask = valid_lens_mask(memory.lengths, memory.keys.shape[-2])

        def look(query, dropout):
            context_Bx1xV, weights_Bx1xS = attend_with_weights(
                (query @ projected.w_q)[:, None, :],
                memory.keys,
                memory.values,
                score=projected.apply,
                score_params=projected.params,
                mask=mask,
                dropout=dropout,
            )
            return context_Bx1xV[:, 0], weights_Bx1xS[:, 0]

        return look
