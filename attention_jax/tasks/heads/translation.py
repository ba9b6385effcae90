"""The heads of a translation run: of its encoder, its decoder, and between the two."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attention_jax.data.corpus import Corpus, Split
from attention_jax.data.minimal_pairs import minimal_pairs
from attention_jax.data.sentences import Sentences
from attention_jax.errors import UserError
from attention_jax.evaluation.alignment import Alignments, alignment_error_rate
from attention_jax.evaluation.roles import chance_of_rarest
from attention_jax.evaluation.translation import Batch, Batches, score_translations
from attention_jax.modules.attention import Edits
from attention_jax.ops.losses import Sums
from attention_jax.reports.heads_page import Written
from attention_jax.tasks.heads.gating import Sizes, edits_of
from attention_jax.tasks.heads.patching import Carried, Couples, carried, couples_of
from attention_jax.tasks.heads.portrait import Portrait
from attention_jax.tasks.heads.roles import looks_of
from attention_jax.tasks.heads.session import Looks, Session, in_order
from attention_jax.tasks.opened import sizes_of
from attention_jax.tasks.translation import model
from attention_jax.tasks.translation import session as translation
from attention_jax.tasks.translation.measuring import bleu_tokens
from attention_jax.tasks.translation.translating import (
    Trained,
    attention,
    batches_of,
    encode,
    translate,
    translate_texts,
)
from attention_jax.training.description import Description
from attention_jax.training.saved import best_variables
from attention_jax.training.state import Variables

SHOWN = 8  # sentences, of which the longest has a page
START = "<bos>"


class Texts(NamedTuple):
    """Sentences of a split with their translations; `alignments` of the first ones if all are known."""

    sources: list[str]
    references: list[list[str]]
    source: Sentences
    target: Sentences
    alignments: Alignments | None


class TranslationSession(Session):
    """A run of translation."""

    @functools.cached_property
    def opened(self) -> translation.Session:
        """The run's corpus, model and programs."""
        return translation.open_session(self.of_run, self.path / "data")

    @functools.cached_property
    def trained(self) -> list[Trained]:
        """Each seed's model."""
        run = self.opened
        saved = best_variables(self.of_run, self.path, run.init, run.corpus.vocabulary, run.placement)
        return [Trained(run.programs, (variables,), run.corpus, run.data) for variables in saved]

    @property
    def variables(self) -> list[Variables]:
        return [trained.members[0] for trained in self.trained]

    @functools.cached_property
    def sizes(self) -> Sizes:
        token = np.ones((1, 1), np.int32)
        return in_order(sizes_of(self.opened.programs.model, self.variables[0], token, np.ones(1, np.int32), token))

    def loss(self, variables: Variables, batch: Batch, edits: Edits) -> Sums:
        return self.opened.programs.loss((variables,), batch, edits)

    def batches(self, key: str) -> Batches:
        texts = self.texts(key)
        return batches_of(self.trained[0], texts.source, texts.target)

    def bleu(self, seed: int, settings: Iterable[Edits]) -> list[float]:
        texts, tokens = self.texts("split"), bleu_tokens(self.of_run)
        edited = (self.trained[seed]._replace(edits=edits) for edits in settings)
        outputs = (translate_texts(trained, texts.sources) for trained in edited)
        return [score_translations(found, texts.references, tokens)["bleu"] for found in outputs]

    def looks(self, seed: int) -> Looks:
        texts = self.texts("split")
        maps = attention(self.trained[seed], texts.source, texts.target)
        return looks_of(maps, self.sizes, self.source_counts, texts.alignments)

    def chances(self) -> dict[str, float]:
        """Of one that looks anywhere at the rarest token ("rare"), and of one on the diagonal ("aligned")."""
        texts, found = self.texts("split"), {"rare": chance_of_rarest(self.source_counts)}
        if texts.alignments is not None:
            sides = zip(texts.target.lengths, texts.source.lengths, strict=True)
            found["aligned"] = alignment_error_rate([np.eye(t, s)[:-1] for t, s in sides], texts.alignments)
        return found

    def portrait(self, gates: np.ndarray) -> Portrait:
        """Of a sentence of the split, and its translation."""
        trained, corpus = self.trained[0], self.opened.corpus
        text = max(self.texts("split").sources[:SHOWN], key=len)
        source = encode(corpus.source, [text])
        found = [translate(trained._replace(edits=edits_of(row, self.sizes)), source)[0] for row in gates]
        written = [self._written(source, ids, row) for ids, row in zip(found, gates, strict=True)]
        read, out = corpus.source.words(source[0]), written[0].words
        words = {"encoder": (read, read), "decoder": (out, [START, *out[:-1]]), "cross": (out, read)}
        maps = attention(trained, source, Sentences.join(found[:1]))[0]
        return Portrait(f"{text} → {corpus.target.decode(found[0])}", words, maps, written)

    def _written(self, source: Sentences, ids: Sequence[int], gates: np.ndarray) -> Written:
        """The words of a translation, and how likely each is after those before it, under gates."""
        target = Sentences.join([ids])
        ((_, batch),) = batches_of(self.trained[0], source, target)
        likely = np.asarray(self.probabilities(self.variables[0], batch, gates))[0, : len(ids)]
        return Written(self.opened.corpus.target.words(ids), likely.tolist())

    @functools.cached_property
    def probabilities(self) -> Callable[[Variables, Batch, np.ndarray], Array]:
        """The probability of each word of a batch's targets, teacher forced, under gates."""
        translator, sizes = self.opened.programs.model, self.sizes

        def each(variables, batch, gates):
            read = batch["source"], model.lengths_of(batch["source"]), model.shifted(batch["target"])
            logits: Any = translator.apply(variables, *read, edits=edits_of(gates, sizes))
            return jnp.take_along_axis(jax.nn.softmax(logits), batch["target"][..., None], axis=-1)[..., 0]

        return jax.jit(each)

    @property
    def description(self) -> Description:
        data = self.of_run.data
        built = model.build(self.of_run, data.vocabulary, data.vocabulary)
        return model.describe(self.of_run, built, max(data.batch_tokens // data.buckets[-1], 1), data.buckets[-1])

    @functools.cached_property
    def source_counts(self) -> list[np.ndarray]:
        """How often each token of each source sentence is in the training data."""
        corpus, source = self.opened.corpus, self.texts("split").source
        training = np.bincount(corpus.splits["train"].source.tokens, minlength=corpus.source.size)
        return [training[source[index]] for index in range(len(source))]

    @functools.cached_property
    def carried(self) -> Callable[[Variables, Couples], Carried]:
        """What heads carry of the change of one word."""
        return carried(self.opened.programs.model, self.sizes)

    @functools.cached_property
    def couples(self) -> Couples:
        """Couples of the grammar, drawn anew; a sentence may be the corpus's by chance."""
        pairs = [*minimal_pairs(self.of_run.data.seed + 1 + self.config.seeds[0], self.config.couples)]
        return couples_of(pairs, self.opened.corpus.source, self.opened.corpus.target)

    def texts(self, key: str) -> Texts:
        """At most `config.sentences` of a split, evenly spaced. Raises UserError where the run has no such split."""
        name, corpus = self.config[key], self.opened.corpus
        if name not in corpus.splits:
            raise UserError(f"config.{key}={name!r}: the run has {', '.join(corpus.splits)}.")
        return _texts_of(corpus.splits[name], corpus, self.config.sentences)


def _texts_of(split: Split, corpus: Corpus, most: int) -> Texts:
    total = len(split.references)
    chosen = [split.references[index] for index in np.linspace(0, total - 1, min(most, total)).astype(int)]
    sources, references = [one.source for one in chosen], [one.targets for one in chosen]
    source, target = encode(corpus.source, sources), encode(corpus.target, [first for first, *_ in references])
    found = [one.alignment for one in chosen if one.alignment is not None]
    are_whole = [len(alignment) for alignment in found] == (target.lengths - 1).tolist()
    return Texts(sources, references, source, target, found if are_whole else None)
