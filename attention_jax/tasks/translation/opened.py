"""A trained translation run, opened: the object that `attention_jax.load` gives."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from attention_jax.data.sentences import Sentences
from attention_jax.data.tokenizers import PAD, Tokenizer
from attention_jax.errors import UserError
from attention_jax.evaluation.translation import RowLosses, row_losses
from attention_jax.modules.attention import NO_EDITS, Edits, Heads
from attention_jax.ops.losses import Sums, cross_entropy
from attention_jax.tasks.opened import Opened, Removed, size_of, without_each_head
from attention_jax.tasks.translation.measuring import measure_split
from attention_jax.tasks.translation.model import lengths_of, shifted
from attention_jax.tasks.translation.session import Session
from attention_jax.tasks.translation.translating import Trained, batches_of, encode, translate_texts
from attention_jax.training.state import Variables

Pairs = str | Sequence[tuple[str, str]]  # a split by its name, or sentences with their translations


class Attended(NamedTuple):
    """What a model's heads do with one sentence, teacher forced.

    `source` and `target` are tokens, ends included. `heads` are by kind: "encoder", "decoder", "cross"; weights
    [layers, heads, Q, K], outputs [layers, heads, Q, F].
    """

    source: list[str]
    target: list[str]
    heads: dict[str, Heads]


@dataclasses.dataclass(frozen=True)
class OpenedTranslator(Opened):
    """A trained translator: `config`, `session`, `which`, `seed`, `folder`, `result`, `metrics()`, and those below.

    `edits` change heads, by kind of attention: `{"cross": Edit(gate=ones[layers, heads])}`, with layers as the first
    axis of every array.
    """

    session: Session

    @property
    def model(self) -> nn.Module:
        """The Linen module; `run.model.apply(run.variables, …)` calls it."""
        return self.session.programs.model

    @functools.cached_property
    def variables(self) -> Variables:
        """Parameters, and the moments of batch norms if there are any."""
        return self.restored(self.session.init, self.session.corpus.vocabulary)

    @property
    def source(self) -> Tokenizer:
        """The source's vocabulary: `encode`, `words`, `decode`, `size`."""
        return self.session.corpus.source

    @property
    def target(self) -> Tokenizer:
        """The target's vocabulary."""
        return self.session.corpus.target

    def translate(self, texts: Sequence[str]) -> list[str]:
        """The translation of each text, as `config.evaluate` says."""
        return translate_texts(self._trained, texts)

    def attention(
        self, texts: Sequence[str], targets: Sequence[str] | None = None, edits: Edits = NO_EDITS
    ) -> list[Attended]:
        """What every head does with each text and its target; targets are the model's translations unless given."""
        targets = self.translate(texts) if targets is None else targets
        source, target = encode(self.source, texts), encode(self.target, targets)
        of_texts: dict[int, Attended] = {}
        for indices, batch in batches_of(self._trained, source, target):
            kinds = jax.device_get(self._attention(self.variables, batch, dict(edits)))
            for row, index in enumerate(indices.tolist()):
                of_texts[index] = self._cut(kinds, row, source[index], target[index])
        return [of_texts[index] for index in sorted(of_texts)]

    def scores(self, pairs: Pairs = "validation", edits: Edits = NO_EDITS) -> RowLosses:
        """The loss of each pair of a split, or of the pairs given, in their order: nats, and tokens with the end."""
        return row_losses(lambda batch: self._loss(self.variables, batch, dict(edits)), self._batches(pairs))

    def measure(self, split: str = "test") -> dict[str, Any]:
        """Loss, perplexity, BLEU and chrF of a held-out split, and how attention aligns its words."""
        return measure_split(self._trained, self._split(split), self.config).numbers

    def without_each_head(self, kind: str = "cross", pairs: Pairs = "validation") -> Removed:
        """The loss of the pairs without each head of a kind, "encoder", "decoder" or "cross", and the whole model's."""
        token = np.ones((1, 1), np.int32)
        layers, heads = size_of(self.model, self.variables, kind, token, np.ones(1, np.int32), token)
        return without_each_head(self._loss, self.variables, self._batches(pairs), kind, layers, heads)

    @functools.cached_property
    def _trained(self) -> Trained:
        return Trained(self.session.programs, (self.variables,), self.session.corpus, self.session.data)

    @functools.cached_property
    def _loss(self) -> Any:
        model = self.model

        def loss(variables: Variables, batch: Any, edits: Edits) -> Sums:
            source, target = batch["source"], batch["target"]
            logits: Any = model.apply(variables, source, lengths_of(source), shifted(target), edits=edits)
            return jax.vmap(cross_entropy)(logits, target, target != PAD)

        return jax.jit(loss)

    @functools.cached_property
    def _attention(self) -> Any:
        model = self.model

        def attention(variables: Variables, batch: Any, edits: Edits) -> Any:
            arguments = (batch["source"], lengths_of(batch["source"]), shifted(batch["target"]))
            return model.apply(variables, *arguments, edits=edits, method="attention")

        return jax.jit(attention)

    def _cut(self, kinds: dict[str, Heads], row: int, source: np.ndarray, target: np.ndarray) -> Attended:
        s, t = len(source), len(target)
        sizes = {"encoder": (s, s), "decoder": (t, t), "cross": (t, s)}
        heads = {}
        for kind, (weights, outputs) in kinds.items():
            queries, keys = sizes[kind]
            heads[kind] = Heads(weights[row, :, :, :queries, :keys], outputs[row, :, :, :queries])
        return Attended(self.source.words(source), self.target.words(target), heads)

    def _batches(self, pairs: Pairs) -> Any:
        if isinstance(pairs, str):
            split = self._split(pairs)
            return batches_of(self._trained, split.source, split.target)
        sides = [*zip(*pairs, strict=True)]
        both: list[Sentences] = [
            encode(tokenizer, side) for tokenizer, side in zip((self.source, self.target), sides, strict=True)
        ]
        return batches_of(self._trained, *both)

    def _split(self, name: str) -> Any:
        splits = self.session.corpus.splits
        if name not in splits:
            raise UserError(f"split={name!r}: choose one of {', '.join(splits)}.")
        return splits[name]
