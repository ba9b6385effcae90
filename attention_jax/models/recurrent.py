"""A recurrent encoder–decoder with any attention, as in Bahdanau et al. 2015 or Luong et al. 2015, or with none."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attention_jax import backends
from attention_jax.modules.attention import (
    NO_EDITS,
    UNCHANGED,
    Edit,
    Edits,
    Heads,
    edited,
    require_gates,
    require_layers,
)
from attention_jax.modules.embedding import Embedding
from attention_jax.modules.logits import logits_layer
from attention_jax.modules.recurrent import RecurrentCell, RecurrentEncoder
from attention_jax.modules.spec import AttentionSpec
from attention_jax.ops.attention import Attended, Relative, Replacement
from attention_jax.ops.cache import Cache
from attention_jax.ops.dropout import Dropout, drop, multiplier
from attention_jax.ops.local import gaussian_falloff, predicted_centre
from attention_jax.ops.masking import combine, near_mask, valid_lens_mask
from attention_jax.ops.recurrent import CELLS, CellWeights, State, over_time, stacked_step
from attention_jax.ops.scoring import Projected, Score
from attention_jax.ops.shapes import require_choice, require_unset

SITES = ("embeddings", "layers", "attention", "output")
ATTENDS = ("before", "after", "never")
OUTPUTS = ("state", "deep", "attentional")
SPANS = ("global", "local_m", "local_p")
KIND = "cross"  # of attention: the only one
UNREAD = {"score": "additive", "normalize": "softmax", "span": "global"}  # the values without attention


class Memory(NamedTuple):
    """The encoded source. Keys are projected once, not at each step of the decoder."""

    keys: Float[Array, "batch s h"]
    values: Float[Array, "batch s v"]
    lengths: Int[Array, " batch"]
    states: tuple[State, ...]


class DecoderState(NamedTuple):
    """The layers' states, and with input feeding the attentional vector that is read beside the next word."""

    layers: tuple[State, ...]
    feed: Float[Array, "batch f"] | None


class Word(NamedTuple):
    """The input of one decoder step: the word's part of the gates, its position, dropout, and the edit of the head."""

    gates: Float[Array, "batch gh"]
    position: Int[Array, " batch"]
    attention_dropout: Dropout | None = None
    layer_masks: Float[Array, "layers batch h"] | None = None
    edit: Edit = UNCHANGED


class Output(NamedTuple):
    """The result of one decoder step; `weights` are None without attention, or if they were not asked for."""

    hidden: Float[Array, "batch h"]
    context: Float[Array, "batch v"]
    weights: Float[Array, "batch s"] | None


Advance = Callable[[DecoderState, Word], tuple[DecoderState, Output]]


class RecurrentTranslator(nn.Module, kw_only=True):
    """Layers of recurrent cells on both sides, with attention from the decoder's states to the encoder's outputs.

    - `attends`: which decoder state is the query. "before": the state before the word; the context is read beside the
      word (Bahdanau et al. 2015, A.1.2, A.2.2). "after": the new state h, from which h̃ = tanh(W_c [c; h]) is made
      (Luong et al. 2015, eq. 5). "never": no attention; the context is the encoder's last state (Cho et al. 2014).
    - `output`: what the next word is predicted from. "state"; "deep": a maxout layer over state, context and previous
      word (Bahdanau et al. 2015, A.2.2; there the state is that before the word, here the new one, as Cho et al. 2014
      have it); "attentional": h̃, for `attends` "after" alone.
    - `input_feeding`: h̃ is read beside the next word (Luong et al. 2015, §3.3).
    - `score`, `normalize`, `backend`: as in `AttentionSpec`. Keys are projected if the score needs queries and keys of
      equal size and they are not.
    - `span`: "global", all keys; or the keys at most `window` positions from a centre, which is the word's own position
      ("local_m") or predicted ("local_p", Luong et al. 2015, §3.2).
    - `bidirectional`: the source is read both ways, and the decoder starts at tanh(W h) of the last states h, else h.
    - `dropout_sites`: embeddings, layers (between them), attention (weights), output.
    """

    source_vocabulary: int
    target_vocabulary: int
    embedding: int
    hidden: int
    layers: int
    cell: str
    bidirectional: bool
    attends: str
    output: str
    input_feeding: bool
    span: str
    window: int
    dropout_sites: tuple[str, ...]
    score: str
    normalize: str = "softmax"
    backend: str = "reference"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        for name in ("embedding", "hidden", "layers", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: needs 1 or more.")
        choices = {"cell": tuple(CELLS), "attends": ATTENDS, "output": OUTPUTS, "span": SPANS}
        for name, known in choices.items():
            require_choice(name, getattr(self, name), known)
        for site in self.dropout_sites:
            require_choice("dropout_sites", site, SITES)
        if self.output == "attentional" and self.attends != "after":
            raise ValueError(f"output='attentional': requires attends='after', and attends={self.attends!r}.")
        if self.output != "attentional" and self.attends == "after":
            raise ValueError(f"output={self.output!r}: attends='after' requires output='attentional'.")
        if self.input_feeding and self.attends != "after":
            raise ValueError(f"input_feeding=True: requires attends='after', and attends={self.attends!r}.")
        self.spec.check()
        if self.attends == "never":
            require_unset(self, UNREAD, "attends='never' has no attention to read it")
        super().__post_init__()

    def setup(self):
        self.source_embedding = Embedding(self.source_vocabulary, self.embedding, **self.types)
        self.target_embedding = Embedding(self.target_vocabulary, self.embedding, **self.types)
        sizes = (self.cell, self.embedding, self.hidden, self.layers, self.bidirectional)
        self.encoder = RecurrentEncoder(*sizes, self.param_dtype)
        inputs = [self.embedding + self.feed_size, *[self.hidden] * (self.layers - 1)]
        self.cells = [
            RecurrentCell(self.cell, size, self.hidden, self.param_dtype, name=f"decoder_{layer}")
            for layer, size in enumerate(inputs)
        ]
        if self.bidirectional:
            self.bridges = [
                [
                    nn.Dense(self.hidden, **self.types, name=f"bridge_{layer}{'_cell' * part}")
                    for part in range(CELLS[self.cell].parts)
                ]
                for layer in range(self.layers)
            ]
        if self.attends != "never":
            self._make_attention()
        if self.output == "deep":
            self.deep = nn.Dense(2 * self.hidden, **self.types, name="readout")
        self.logits = logits_layer(self.target_vocabulary, **self.types)

    def _make_attention(self) -> None:
        glorot, sizes = nn.initializers.glorot_uniform(), (self.hidden, self.memory_size, self.hidden)
        self.score_params = self._score.init_with(self.param, *sizes, self.param_dtype)
        if self.span == "local_p":
            self.centre_params = (
                self.param("w_p", glorot, (self.hidden, self.hidden), self.param_dtype),
                self.param("v_p", nn.initializers.normal(self.hidden**-0.5), (self.hidden,), self.param_dtype),
            )
        if self.output == "attentional":
            self.w_c = self.param("w_c", glorot, (self.memory_size + self.hidden, self.hidden), self.param_dtype)
        if self._score.needs_equal_sizes and self.memory_size != self.hidden:
            self.w_key = self.param("w_key", glorot, (self.memory_size, self.hidden), self.param_dtype)
        self.sinks = self.spec.attention().normalizer.init_with(self.param, 1, self.param_dtype)

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(self.score, self.normalize, self.backend)

    @property
    def _score(self) -> Score:
        return self.spec.attention().score

    @property
    def room(self) -> int | None:
        """The longest source that the score has room for; None: any."""
        return None if self.attends == "never" else self._score.room

    @property
    def types(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    @property
    def memory_size(self) -> int:
        return self.hidden * (2 if self.bidirectional else 1)

    @property
    def feed_size(self) -> int:
        """How many features are read beside the word's embedding: those of the context, or of h̃."""
        return self.hidden * self.input_feeding if self.attends == "after" else self.memory_size

    def __call__(
        self,
        source: Int[Array, "batch s"],
        lengths: Int[Array, " batch"],
        inputs: Int[Array, "batch t"],
        dropout: Dropout | None = None,
        edits: Edits = NO_EDITS,
    ) -> Float[Array, "batch t v"]:
        """Logits of every next word, teacher forced. `edits` change the one layer's one head, of kind "cross"."""
        return self.decode(self.encode(source, lengths, dropout, edits), inputs, dropout, edits)

    def encode(
        self,
        source: Int[Array, "batch s"],
        lengths: Int[Array, " batch"],
        dropout: Dropout | None = None,
        edits: Edits = NO_EDITS,
    ) -> Memory:
        """The source's memory; tokens from a sentence's length on are padding. The encoder has no heads to edit."""
        del edits
        valid = jnp.arange(source.shape[-1])[None, :] < lengths[:, None]
        embedded = drop(self.source_embedding(source), self.dropout_at("embeddings", 0, dropout))
        values, states = self.encoder(embedded, valid, self.dropout_at("layers", 0, dropout))
        summary = states[-1][0]
        if self.bidirectional:
            states = tuple(
                tuple(jnp.tanh(bridge(part)) for bridge, part in zip(bridges, final, strict=True))
                for bridges, final in zip(self.bridges, states, strict=True)
            )
        if self.attends == "never":
            return Memory(summary[:, :0], summary, lengths, states)
        return Memory(_times(values, self._projected().w_k), values, lengths, states)

    def decode(
        self, memory: Memory, inputs: Int[Array, "batch t"], dropout: Dropout | None = None, edits: Edits = NO_EDITS
    ) -> Float[Array, "batch t v"]:
        """Logits of every next word, teacher forced."""
        return self._teach(memory, inputs, dropout, edits, False)[0]

    def attention(
        self,
        source: Int[Array, "batch s"],
        lengths: Int[Array, " batch"],
        inputs: Int[Array, "batch t"],
        edits: Edits = NO_EDITS,
    ) -> dict[str, Heads]:
        """{"cross": what the one layer's one head does in a teacher-forced pass}; empty without attention.

        Weights are `[batch, 1, 1, T, S]`, outputs (contexts) `[batch, 1, 1, T, V]`.
        """
        if self.attends == "never":
            return {}
        said: Any = self._teach(self.encode(source, lengths), inputs, None, edits, True)[1]
        return {KIND: Heads(said.weights[:, None, None], said.context[:, None, None])}

    def init_cache(self, memory: Memory, max_length: int) -> Cache:
        """The cache before the first word; its size does not depend on `max_length`."""
        del max_length
        return Cache(memory, self._start(memory), jnp.zeros(memory.lengths.shape, jnp.int32))

    def step(
        self, tokens: Int[Array, " batch"], cache: Cache, edits: Edits = NO_EDITS
    ) -> tuple[Float[Array, "batch v"], Cache]:
        """Logits of the word after `tokens`, and the cache with them.

        Raises ValueError for `edits` that are more than gates.
        """
        require_gates(edits)
        embedded = self.target_embedding(tokens)
        edit = jax.tree.map(lambda array: array[0], self._by_word(edits, 1))
        word = Word(self._gates_of(embedded), cache.cursor, edit=edit)
        state, output = self._advance(cache.memory, False)(cache.state, word)
        return self._readout(output, embedded, None), Cache(cache.memory, state, cache.cursor + 1)

    def dropout_at(self, site: str, index: int, dropout: Dropout | None) -> Dropout | None:
        """Dropout at a site, with another key for each `index`; None if the site has no dropout."""
        if dropout is None or site not in self.dropout_sites:
            return None
        return dropout.fold(2 * SITES.index(site) + index)

    def _teach(
        self, memory: Memory, inputs: Array, dropout: Dropout | None, edits: Edits, with_weights: bool
    ) -> tuple[Array, Output]:
        embedded = drop(self.target_embedding(inputs), self.dropout_at("embeddings", 1, dropout))
        steps = jnp.arange(inputs.shape[-1])
        attention_dropout = self.dropout_at("attention", 0, dropout)
        between = self.dropout_at("layers", 1, dropout)
        shape = (len(steps), self.layers, len(inputs), self.hidden)
        masks = between and multiplier(between._replace(row=0), shape, start=(between.row, 0))
        words = Word(
            jnp.swapaxes(self._gates_of(embedded), 0, 1),
            jnp.broadcast_to(steps[:, None], inputs.T.shape),
            attention_dropout and jax.vmap(lambda t: attention_dropout.fold(t))(steps),
            masks,
            self._by_word(edits, len(steps)),
        )
        _, said = over_time(self._advance(memory, with_weights), self._start(memory), words)
        said = jax.tree.map(lambda array: jnp.swapaxes(array, 0, 1), said)
        return self._readout(said, embedded, self.dropout_at("output", 0, dropout)), said

    def _advance(self, memory: Memory, with_weights: bool) -> Advance:
        """One decoder step with this memory, as a function of arrays."""
        layers, attend = tuple(cell.weights for cell in self.cells), self._attend(memory, with_weights)
        w_feed = layers[0].w_i[self.embedding :]  # rows for the features beside the word's embedding
        is_before = self.attends != "after"

        def advance(state: DecoderState, word: Word) -> tuple[DecoderState, Output]:
            found = attend(state.layers[-1][0], word) if is_before else None
            feed = state.feed if found is None else found.values
            gates = word.gates if feed is None else word.gates + _times(feed, w_feed)
            advanced = stacked_step(self.cell, layers, state.layers, gates, word.layer_masks)
            hidden, feed = advanced[-1][0], None
            if found is None:
                found = attend(hidden, word)
                hidden = jnp.tanh(_times(jnp.concatenate([found.values, hidden], axis=-1), self.w_c))
                feed = hidden if self.input_feeding else None
            return DecoderState(advanced, feed), Output(hidden, *found)

        return advance

    def _attend(self, memory: Memory, with_weights: bool) -> Callable[[Array, Word], Attended]:
        """(state [batch, h], word) → the context, and the weights if they are asked for."""
        if self.attends == "never":
            return lambda query, word: Attended(memory.values, None)
        projected, known = self._projected(), valid_lens_mask(memory.lengths, memory.keys.shape[-2])

        def attend(query, word):
            near, relative = self._local(query, word, memory)
            found = backends.attend(
                "reference" if with_weights or word.edit.weights is not None else self.backend,
                _times(query, projected.w_q)[:, None],
                memory.keys,
                memory.values,
                score=Score(projected.apply, is_weight=self._score.is_weight),
                score_params=tuple(array.astype(query.dtype) for array in projected.params),
                normalize=self.normalize,
                normalizer_params=tuple(sink.reshape(1, 1, 1) for sink in self.sinks),
                mask=combine(known, near),
                relative=relative,
                dropout=word.attention_dropout,
                replacement=_replacement(word.edit),
                with_weights=with_weights,
            )
            context = edited(found.values[:, None], word.edit)[:, 0, 0]
            return Attended(context, None if found.weights is None else found.weights[:, 0])

        return attend

    def _local(self, query: Float[Array, "batch h"], word: Word, memory: Memory) -> tuple[Any, Relative]:
        """The mask of the keys in the word's window, and how their weights fall off from its centre."""
        if self.span == "global":
            return None, Relative()
        centre, keys = word.position[:, None].astype(jnp.float32), memory.keys.shape[-2]
        if self.span == "local_m":
            return near_mask(centre, self.window, keys), Relative()
        w_p, v_p = (array.astype(self.dtype) for array in self.centre_params)
        centre = predicted_centre(query[:, None], memory.lengths, w_p, v_p)
        positions = jnp.arange(keys, dtype=centre.dtype)[None]
        relative = Relative(falloff=gaussian_falloff, params=self.window, queries=centre, keys=positions)
        return near_mask(centre, self.window, keys), relative

    def _projected(self) -> Projected:
        found = self._score.projected(self.hidden, *self.score_params)
        if self._score.needs_equal_sizes and self.memory_size != self.hidden:
            return found._replace(w_k=self.w_key)
        return found

    def _readout(self, output: Output, embedded: Array, dropout: Dropout | None) -> Float[Array, "... v"]:
        top = output.hidden
        if self.output == "deep":
            top = self.deep(jnp.concatenate([top, output.context, embedded], axis=-1))
            top = jnp.maximum(*jnp.split(top, 2, axis=-1))
        return self.logits(drop(top, dropout))

    def _start(self, memory: Memory) -> DecoderState:
        feed = jnp.zeros((len(memory.lengths), self.hidden), self.dtype) if self.input_feeding else None
        return DecoderState(memory.states, feed)

    def _by_word(self, edits: Edits, words: int) -> Edit:
        """The edit of the one layer's one head, with words as the first axis."""
        require_layers(edits, {} if self.attends == "never" else {KIND: 1})
        edit = jax.tree.map(lambda array: array[0], edits.get(KIND, UNCHANGED))
        of_head = lambda part: None if part is None else jnp.broadcast_to(part, (words, 1))  # noqa: E731
        of_word = lambda part: None if part is None else jnp.moveaxis(part, -2, 0)[..., None, :]  # noqa: E731
        return Edit(of_head(edit.gate), of_head(edit.replaced), of_word(edit.weights), of_word(edit.outputs))

    def _gates_of(self, embedded: Float[Array, "... e"]) -> Float[Array, "... gh"]:
        first: CellWeights = self.cells[0].weights
        return first._replace(w_i=first.w_i[: self.embedding]).project(embedded)


def _replacement(edit: Edit) -> Replacement | None:
    if edit.weights is None or edit.replaced is None:
        return None
    return Replacement(edit.replaced[:, None, None], edit.weights[:, 0])


def _times(x: Array, matrix: Array | None) -> Array:
    return x if matrix is None else x @ matrix.astype(x.dtype)
