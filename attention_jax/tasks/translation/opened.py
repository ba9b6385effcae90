"""A trained translation run, opened: the object that `attention_jax.load` gives."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from attention_jax.data.sentences import Sentences
from attention_jax.data.tokenizers import Tokenizer
from attention_jax.errors import UserError
from attention_jax.evaluation.translation import RowLosses, row_losses
from attention_jax.modules.attention import NO_EDITS, Edits, Heads
from attention_jax.tasks.opened import Opened, Removed, require_kind, sizes_of, without_each_head
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

    def translate(self, texts: Sequence[str], edits: Edits = NO_EDITS) -> list[str]:
        """The translation of each text by this one model, searched for as `config.evaluate` says; of "" it is "".

        `config.evaluate.combine` is not followed: `which` and `seed` say whose variables translate.
        Raises UserError for one text that is not in a list, ValueError for edits that are not gates.
        """
        _require_list(texts)
        written = {number: text for number, text in enumerate(texts) if text.strip()}
        found = dict(zip(written, translate_texts(self._with(edits), [*written.values()], [*written]), strict=True))
        return [found.get(number, "") for number in range(len(texts))]

    def attention(
        self, texts: Sequence[str], targets: Sequence[str] | None = None, edits: Edits = NO_EDITS
    ) -> list[Attended]:
        """What every head does with each text and its target.

        Targets are the model's translations unless given, made without edits.
        """
        _require_list(texts)
        changes = self.edited(edits)
        targets = self.translate(texts) if targets is None else targets
        source, target = encode(self.source, texts), encode(self.target, targets)
        of_texts: dict[int, Attended] = {}
        for indices, batch in batches_of(self._trained, source, target):
            kinds = jax.device_get(self._attention(self.variables, batch, changes))
            for row, index in enumerate(indices.tolist()):
                of_texts[index] = self._cut(kinds, row, source[index], target[index])
        return [of_texts[index] for index in sorted(of_texts)]

    def scores(self, pairs: Pairs = "validation", edits: Edits = NO_EDITS) -> RowLosses:
        """The loss of each pair of a split, or of the pairs given, in their order: nats, and tokens with the end."""
        trained = self._with(edits)
        return row_losses(functools.partial(trained.apply, trained.programs.loss), self._batches(pairs))

    def measure(self, split: str = "test", edits: Edits = NO_EDITS) -> dict[str, Any]:
        """Loss, perplexity, BLEU and chrF of a held-out split, and how attention aligns its words.

        Raises ValueError for edits that are not gates.
        """
        return measure_split(self._with(edits), self._split(split), self.config).numbers

    def without_each_head(self, kind: str = "cross", pairs: Pairs = "validation") -> Removed:
        """The loss of the pairs without each head of a kind, "encoder", "decoder" or "cross", and the whole model's."""
        layers, heads = require_kind(self.sizes, kind)

        def loss(variables, batch, edits):
            return self.session.programs.loss((variables,), batch, edits)

        return without_each_head(loss, self.variables, self._batches(pairs), kind, layers, heads)

    @functools.cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """How many layers and heads each kind of attention has: "encoder", "decoder", "cross"."""
        token = np.ones((1, 1), np.int32)
        return sizes_of(self.model, self.variables, token, np.ones(1, np.int32), token)

    @functools.cached_property
    def _trained(self) -> Trained:
        return Trained(self.session.programs, (self.variables,), self.session.corpus, self.session.data)

    def _with(self, edits: Edits) -> Trained:
        return self._trained._replace(edits=self.edited(edits))

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


def _require_list(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise UserError(f"{texts!r}: is one text, and a list of texts is needed: [{texts!r}].")
