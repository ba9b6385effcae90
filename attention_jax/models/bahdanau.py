"""Bahdanau et al. 2015: a recurrent encoder–decoder that learns to align and translate jointly."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.modules.recurrent import GRUCell, GRUEncoder
from attention_jax.ops.dropout import Dropout, drop, multiplier
from attention_jax.ops.masking import valid_lens_mask
from attention_jax.ops.pooling import attend_with_weights
from attention_jax.ops.recurrent import GRUWeights, gru_step
from attention_jax.ops.scoring import SCORES, additive_projected

States = tuple[Float[Array, "batch h"], ...]
SITES = ("embeddings", "layers", "attention", "output")


class Memory(NamedTuple):
    """What the encoder hands to the decoder; keys are projected once, not at each step."""

    keys: Float[Array, "batch s h"]
    values: Float[Array, "batch s v"]
    lengths: Int[Array, " batch"]
    states: States


class Cache(NamedTuple):
    """What `step` needs and gives back; the memory never changes."""

    memory: Memory
    states: States


class _Decoder(NamedTuple):
    """The arrays of one decoder step: query projection, score vector, context's share of the gates, layers."""

    w_q: Float[Array, "h a"]
    w_v: Float[Array, " a"]
    w_context: Float[Array, "v 3h"]
    layers: tuple[GRUWeights, ...]


class Bahdanau(nn.Module):
    """GRU encoder, additive attention queried by the decoder's last state, GRU decoder.

    `bidirectional` reads the source both ways; the decoder then starts from tanh(W h) of each layer's
    final states, else from the states themselves. `output` predicts from the decoder's "state", or
    "deep": a maxout layer over state, context and previous word (A.2.2). `dropout_sites` names where
    the rate of the call applies: embeddings, layers (between them), attention (weights), output.
    """

    source_vocabulary: int
    target_vocabulary: int
    embedding: int
    hidden: int
    layers: int
    bidirectional: bool
    output: str
    dropout_sites: tuple[str, ...]
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32

    def __post_init__(self):
        for name in ("embedding", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: needs 1 or more.")
        _require_choice("output", self.output, ("state", "deep"))
        for site in self.dropout_sites:
            _require_choice("dropout_sites", site, SITES)
        super().__post_init__()

    def setup(self):
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        memory = self.hidden * (2 if self.bidirectional else 1)
        self.source_embedding = nn.Embed(self.source_vocabulary, self.embedding, **types)
        self.target_embedding = nn.Embed(self.target_vocabulary, self.embedding, **types)
        self.encoder = GRUEncoder(self.embedding, self.hidden, self.layers, self.bidirectional, **types)
        self.cells = [
            GRUCell(
                self.embedding + memory if layer == 0 else self.hidden, self.hidden, **types, name=f"decoder_{layer}"
            )
            for layer in range(self.layers)
        ]
        self.score = SCORES["additive"].init_with(self.param, self.hidden, memory, self.hidden, self.param_dtype)
        if self.bidirectional:
            self.bridges = [nn.Dense(self.hidden, **types, name=f"bridge_{layer}") for layer in range(self.layers)]
        if self.output == "deep":
            self.readout = nn.Dense(2 * self.hidden, **types)
        self.logits = nn.Dense(self.target_vocabulary, **types)

    def __call__(
        self,
        source: Int[Array, "batch s"],
        lengths: Int[Array, " batch"],
        inputs: Int[Array, "batch t"],
        dropout: Dropout | None = None,
    ) -> Float[Array, "batch t v"]:
        """Logits of every next word, teacher forced."""
        return self.decode(self.encode(source, lengths, dropout), inputs, dropout)[0]

    def encode(
        self, source: Int[Array, "batch s"], lengths: Int[Array, " batch"], dropout: Dropout | None = None
    ) -> Memory:
        """The source's memory; positions at or past a sentence's length are padding."""
        valid = valid_lens_mask(lengths, source.shape[-1]).block(jnp.arange(1), jnp.arange(source.shape[-1]))[:, 0]
        embedded = drop(self.source_embedding(source), self._site(dropout, "embeddings", 0))
        values, finals = self.encoder(embedded, valid, self._site(dropout, "layers", 0))
        if self.bidirectional:
            finals = tuple(jnp.tanh(bridge(state)) for bridge, state in zip(self.bridges, finals, strict=True))
        return Memory(values @ self.score[1].astype(self.dtype), values, lengths, finals)

    def decode(
        self, memory: Memory, inputs: Int[Array, "batch t"], dropout: Dropout | None = None
    ) -> tuple[Float[Array, "batch t v"], Float[Array, "batch t s"]]:
        """Teacher forcing: logits `[batch, target, vocabulary]` and weights `[batch, target, source]`."""
        embedded = drop(self.target_embedding(inputs), self._site(dropout, "embeddings", 1))
        steps = jnp.arange(inputs.shape[-1])
        attention_dropout = self._site(dropout, "attention", 0)
        between = self._site(dropout, "layers", 1)
        masks = None if between is None else multiplier(between, (len(steps), self.layers, len(inputs), self.hidden))
        scanned = (
            jnp.swapaxes(self._gates_of(embedded), 0, 1),
            attention_dropout and jax.vmap(lambda t: attention_dropout.fold(t))(steps),
            None if masks is None else masks.astype(self.dtype),
        )
        advance = functools.partial(_advance, self._decoder(), memory)
        _, outputs = jax.lax.scan(lambda states, x: advance(states, *x), memory.states, scanned)
        top, context, weights = (jnp.swapaxes(array, 0, 1) for array in outputs)
        return self._logits(top, context, embedded, self._site(dropout, "output", 0)), weights

    def init_cache(self, memory: Memory) -> Cache:
        """The cache before the first word."""
        return Cache(memory, memory.states)

    def step(self, tokens: Int[Array, " batch"], cache: Cache) -> tuple[Float[Array, "batch v"], Cache]:
        """Logits of the word after `tokens`, and the cache that has read them."""
        embedded = self.target_embedding(tokens)
        states, (top, context, _) = _advance(
            self._decoder(), cache.memory, cache.states, self._gates_of(embedded), None, None
        )
        return self._logits(top, context, embedded, None), Cache(cache.memory, states)

    def _decoder(self) -> _Decoder:
        layers = tuple(cell.weights() for cell in self.cells)
        w_q, _, w_v = (array.astype(self.dtype) for array in self.score)
        return _Decoder(w_q, w_v, layers[0].w_i[self.embedding :], layers)

    def _gates_of(self, embedded: Float[Array, "... e"]) -> Float[Array, "... 3h"]:
        first = self.cells[0].weights()
        return first._replace(w_i=first.w_i[: self.embedding]).project(embedded)

    def _logits(self, top: Array, context: Array, embedded: Array, dropout: Dropout | None) -> Array:
        if self.output == "deep":
            top = self.readout(jnp.concatenate([top, context, embedded], axis=-1))
            top = jnp.maximum(*jnp.split(top, 2, axis=-1))
        return self.logits(drop(top, dropout))

    def _site(self, dropout: Dropout | None, site: str, place: int) -> Dropout | None:
        if dropout is None or site not in self.dropout_sites:
            return None
        return dropout.fold(2 * SITES.index(site) + place)


def _advance(
    decoder: _Decoder,
    memory: Memory,
    states: States,
    gates: Float[Array, "batch 3h"],
    attention_dropout: Dropout | None,
    masks: Float[Array, "layers batch h"] | None,
) -> tuple[States, tuple[Array, Array, Array]]:
    """One decoder step: attend with the last state, then feed the context and the word through the layers."""
    context_Bx1xV, weights_Bx1xS = attend_with_weights(
        (states[-1] @ decoder.w_q)[:, None, :],
        memory.keys,
        memory.values,
        score=additive_projected,
        score_params=(decoder.w_v,),
        mask=valid_lens_mask(memory.lengths, memory.keys.shape[-2]),
        dropout=attention_dropout,
    )
    context = context_Bx1xV[:, 0]
    gates = gates + context @ decoder.w_context
    advanced: list[Array] = []
    for layer, (weights, state) in enumerate(zip(decoder.layers, states, strict=True)):
        if layer > 0:
            gates = weights.project(advanced[-1] if masks is None else advanced[-1] * masks[layer])
        advanced.append(gru_step(state, gates, weights))
    return tuple(advanced), (advanced[-1], context, weights_Bx1xS[:, 0])


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(choices)}.")
