"""What recurrent translators share: embeddings, encoder, the decoder's layers, the loop over target words."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attention_jax.modules.recurrent import RecurrentCell, RecurrentEncoder
from attention_jax.ops.cache import Cache
from attention_jax.ops.dropout import Dropout, drop, multiplier
from attention_jax.ops.masking import valid_lens_mask
from attention_jax.ops.recurrent import CELLS, CellWeights, State
from attention_jax.ops.shapes import require_choice

SITES = ("embeddings", "layers", "attention", "output")


class Memory(NamedTuple):
    """What the encoder hands to the decoder; keys are projected once, not at each step."""

    keys: Float[Array, "batch s h"]
    values: Float[Array, "batch s v"]
    lengths: Int[Array, " batch"]
    states: tuple[State, ...]


class DecoderState(NamedTuple):
    """The layers' states, and what is fed back beside the next word (nothing, or Luong's attentional vector)."""

    layers: tuple[State, ...]
    feed: Float[Array, "batch f"] | None


class Word(NamedTuple):
    """What one decoder step reads: the word's share of the gates, its place, and the masks of dropout."""

    gates: Float[Array, "batch gh"]
    position: Int[Array, " batch"]
    attention_dropout: Dropout | None = None
    layer_masks: Float[Array, "layers batch h"] | None = None


class Output(NamedTuple):
    """What one decoder step says; `weights` are None in a model without attention."""

    hidden: Float[Array, "batch h"]
    context: Float[Array, "batch v"]
    weights: Float[Array, "batch s"] | None


Advance = Callable[[DecoderState, Word], tuple[DecoderState, Output]]


class RecurrentTranslator(nn.Module, kw_only=True):
    """An encoder and a decoder of recurrent layers; a model says how one step of the decoder attends.

    It does so by `prepare` (its parameters), `keys_of`, `advance` (one step as a function of arrays) and
    `readout`. `bidirectional` reads the source both ways; the decoder then starts from tanh(W h) of each
    layer's final states, else from the states themselves. `dropout_sites` names where the rate of the
    call applies: embeddings, layers (between them), attention (weights), output.
    """

    source_vocabulary: int
    target_vocabulary: int
    embedding: int
    hidden: int
    layers: int
    cell: str
    bidirectional: bool
    dropout_sites: tuple[str, ...]
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        for name in ("embedding", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: needs 1 or more.")
        require_choice("cell", self.cell, tuple(CELLS))
        for site in self.dropout_sites:
            require_choice("dropout_sites", site, SITES)
        super().__post_init__()

    def setup(self):
        self.source_embedding = nn.Embed(self.source_vocabulary, self.embedding, **self.types)
        self.target_embedding = nn.Embed(self.target_vocabulary, self.embedding, **self.types)
        self.encoder = RecurrentEncoder(
            self.cell, self.embedding, self.hidden, self.layers, self.bidirectional, **self.types
        )
        self.cells = [
            RecurrentCell(
                self.cell,
                self.embedding + self.feed_size if layer == 0 else self.hidden,
                self.hidden,
                **self.types,
                name=f"decoder_{layer}",
            )
            for layer in range(self.layers)
        ]
        if self.bidirectional:
            self.bridges = [
                [nn.Dense(self.hidden, **self.types, name=_bridge(layer, part)) for part in range(self.parts)]
                for layer in range(self.layers)
            ]
        self.prepare()

    @property
    def room(self) -> int | None:
        """The longest source that it can attend to; None: any."""
        return None

    @property
    def types(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    @property
    def parts(self) -> int:
        return CELLS[self.cell].parts

    @property
    def memory_size(self) -> int:
        return self.hidden * (2 if self.bidirectional else 1)

    @property
    def feed_size(self) -> int:
        """Features that join the word's embedding at the first layer's input."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make the model's own parameters."""
        raise NotImplementedError

    def keys_of(self, values: Float[Array, "batch s v"]) -> Float[Array, "batch s h"]:
        """What the score will compare with."""
        raise NotImplementedError

    def first_feed(self, memory: Memory) -> Array | None:
        """What is fed beside the first word."""
        del memory
        return None

    def advance(self, memory: Memory) -> Advance:
        """One decoder step over this memory."""
        raise NotImplementedError

    def readout(self, output: Output, embedded: Array, dropout: Dropout | None) -> Float[Array, "... v"]:
        """Logits of the next word."""
        raise NotImplementedError

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
        valid = valid_lens_mask(lengths, source.shape[-1]).block(jnp.arange(1), jnp.arange(source.shape[-1]))[:, 0]
        embedded = drop(self.source_embedding(source), self.site(dropout, "embeddings", 0))
        values, finals = self.encoder(embedded, valid, self.site(dropout, "layers", 0))
        states = finals
        if self.bidirectional:
            states = tuple(
                tuple(jnp.tanh(bridge(part)) for bridge, part in zip(bridges, final, strict=True))
                for bridges, final in zip(self.bridges, finals, strict=True)
            )
        return self.remember(values, lengths, finals[-1][0], states)

    def remember(self, values: Array, lengths: Array, summary: Array, states: tuple[State, ...]) -> Memory:
        """What is kept of the source; `summary` is the encoder's last state."""
        del summary
        return Memory(self.keys_of(values), values, lengths, states)

    def decode(
        self, memory: Memory, inputs: Int[Array, "batch t"], dropout: Dropout | None = None
    ) -> Float[Array, "batch t v"]:
        """Logits of every next word, teacher forced."""
        return self._teach(memory, inputs, dropout)[0]

    def attention(
        self, source: Int[Array, "batch s"], lengths: Int[Array, " batch"], inputs: Int[Array, "batch t"]
    ) -> dict[str, Float[Array, "batch 1 1 t s"]]:
        """Weights of one teacher-forced pass, by kind ("cross"), `[batch, layers, heads, target, source]`."""
        weights = self._teach(self.encode(source, lengths), inputs, None)[1]
        return {} if weights is None else {"cross": weights[:, None, None]}

    def init_cache(self, memory: Memory, max_length: int) -> Cache:
        """The cache before the first word; its size does not depend on `max_length`."""
        del max_length
        return Cache(memory, self._start(memory), jnp.zeros(memory.lengths.shape, jnp.int32))

    def step(self, tokens: Int[Array, " batch"], cache: Cache) -> tuple[Float[Array, "batch v"], Cache]:
        """Logits of the word after `tokens`, and the cache that has read them."""
        embedded = self.target_embedding(tokens)
        state, output = self.advance(cache.memory)(cache.state, Word(self._gates_of(embedded), cache.cursor))
        return self.readout(output, embedded, None), Cache(cache.memory, state, cache.cursor + 1)

    def layer_weights(self) -> tuple[tuple[CellWeights, ...], Float[Array, "f gh"]]:
        """The decoder's layers, and the rows of the first that read what is fed beside the word."""
        layers = tuple(cell.weights() for cell in self.cells)
        return layers, layers[0].w_i[self.embedding :]

    def site(self, dropout: Dropout | None, site: str, place: int) -> Dropout | None:
        """Dropout with a key of its own for one place of a site, None where the site has none."""
        if dropout is None or site not in self.dropout_sites:
            return None
        return dropout.fold(2 * SITES.index(site) + place)

    def _teach(self, memory: Memory, inputs: Array, dropout: Dropout | None) -> tuple[Array, Array | None]:
        embedded = drop(self.target_embedding(inputs), self.site(dropout, "embeddings", 1))
        steps = jnp.arange(inputs.shape[-1])
        attention_dropout = self.site(dropout, "attention", 0)
        between = self.site(dropout, "layers", 1)
        masks = None if between is None else multiplier(between, (len(steps), self.layers, len(inputs), self.hidden))
        words = Word(
            jnp.swapaxes(self._gates_of(embedded), 0, 1),
            jnp.broadcast_to(steps[:, None], inputs.T.shape),
            attention_dropout and jax.vmap(lambda t: attention_dropout.fold(t))(steps),
            None if masks is None else masks.astype(self.dtype),
        )
        _, outputs = jax.lax.scan(self.advance(memory), self._start(memory), words)
        outputs = jax.tree.map(lambda array: jnp.swapaxes(array, 0, 1), outputs)
        return self.readout(outputs, embedded, self.site(dropout, "output", 0)), outputs.weights

    def _start(self, memory: Memory) -> DecoderState:
        return DecoderState(memory.states, self.first_feed(memory))

    def _gates_of(self, embedded: Float[Array, "... e"]) -> Float[Array, "... gh"]:
        first = self.cells[0].weights()
        return first._replace(w_i=first.w_i[: self.embedding]).project(embedded)


def advance_layers(
    cell: str,
    layers: tuple[CellWeights, ...],
    states: tuple[State, ...],
    gates: Float[Array, "batch gh"],
    masks: Float[Array, "layers batch h"] | None,
) -> tuple[State, ...]:
    """One step of stacked layers, the first's input already projected; `masks` drop what goes up."""
    advanced: list[State] = []
    for layer, (weights, state) in enumerate(zip(layers, states, strict=True)):
        if layer > 0:
            below = advanced[-1][0]
            gates = weights.project(below if masks is None else below * masks[layer])
        advanced.append(CELLS[cell].step(state, gates, weights))
    return tuple(advanced)


def _bridge(layer: int, part: int) -> str:
    return f"bridge_{layer}" if part == 0 else f"bridge_{layer}_cell"
