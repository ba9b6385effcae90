"""A finished translation run, opened to measure its heads: texts, variables of every seed, programs."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.corpus import Corpus, Split
from attention_jax.data.minimal_pairs import minimal_pairs
from attention_jax.data.sentences import Sentences
from attention_jax.errors import UserError
from attention_jax.evaluation.alignment import Alignments
from attention_jax.evaluation.translation import Batch, Batches
from attention_jax.modules.attention import Edits
from attention_jax.ops.losses import Sums
from attention_jax.tasks.heads.gating import Losses, estimates, gated_losses
from attention_jax.tasks.heads.patching import Carried, Couples, carried, couples_of
from attention_jax.tasks.opened import sizes_of
from attention_jax.tasks.translation import session as translation
from attention_jax.tasks.translation.translating import Trained, batches_of, encode
from attention_jax.training.saved import best_variables
from attention_jax.training.state import Variables

KINDS = ("encoder", "decoder", "cross")  # of attention, in the order in which they are shown


class Texts(NamedTuple):
    """Sentences of a split with their translations; `alignments` of the first ones if all are known."""

    sources: list[str]
    references: list[list[str]]
    source: Sentences
    target: Sentences
    alignments: Alignments | None


@dataclasses.dataclass(frozen=True)
class Session:
    """What measures the heads of a run; each part is made once, when it is first asked for.

    `config` is the measurement's, `of_run` the run's own, in the folder `path`.
    """

    config: ConfigDict
    of_run: ConfigDict
    path: Path

    @functools.cached_property
    def translation(self) -> translation.Session:
        """The run's corpus, model and programs."""
        return translation.open_session(self.of_run, self.path / "data")

    @functools.cached_property
    def trained(self) -> list[Trained]:
        """The best variables of each of the run's seeds."""
        run = self.translation
        saved = best_variables(self.of_run, self.path, run.init, run.corpus.vocabulary, run.placement)
        return [Trained(run.programs, (variables,), run.corpus, run.data) for variables in saved]

    @functools.cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """How many layers and heads each kind of attention has."""
        token = np.ones((1, 1), np.int32)
        texts = token, np.ones(1, np.int32), token
        found = sizes_of(self.translation.programs.model, self.trained[0].members[0], *texts)
        return {kind: found[kind] for kind in KINDS if kind in found}

    @functools.cached_property
    def losses(self) -> Callable[..., Losses]:
        """(variables, batches, gates) → `Losses`."""
        return gated_losses(self._loss, self.sizes)

    @functools.cached_property
    def estimates(self) -> Callable[..., np.ndarray]:
        """(variables, batches) → what the gradient says of every head."""
        return estimates(self._loss, self.sizes)

    @functools.cached_property
    def carried(self) -> Callable[..., Carried]:
        """(variables, couples) → `Carried`."""
        return carried(self.translation.programs.model, self.sizes)

    @functools.cached_property
    def couples(self) -> Couples:
        """Sentences of the grammar that differ in one word; not those of the corpus, though some may be in both."""
        pairs = [*minimal_pairs(self.of_run.data.seed + 1 + self.config.seeds[0], self.config.couples)]
        return couples_of(pairs, self.translation.corpus.source, self.translation.corpus.target)

    @functools.cached_property
    def measured(self) -> Texts:
        """What heads are measured on: of the split `config.split`."""
        return self._texts("split")

    @functools.cached_property
    def ordering(self) -> Texts:
        """What heads are put in order on: of the split `config.ordering`."""
        return self._texts("ordering")

    def batches(self, trained: Trained, texts: Texts) -> Batches:
        """Texts in padded batches."""
        return batches_of(trained, texts.source, texts.target)

    def _loss(self, variables: Variables, batch: Batch, edits: Edits) -> Sums:
        return self.translation.programs.loss((variables,), batch, edits)

    def _texts(self, key: str) -> Texts:
        """At most `config.sentences` of a split, evenly spaced. Raises UserError where the run has no such split."""
        name, corpus = self.config[key], self.translation.corpus
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
