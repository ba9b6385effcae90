"""Sentences whose true alignments are known, and what programs say of each."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from attention_jax import stopping
from attention_jax.data.sentences import Sentences
from attention_jax.errors import UserError
from attention_jax.evaluation.alignment import Alignments
from attention_jax.evaluation.translation import Batch, Batches
from attention_jax.tasks.translation.opened import OpenedTranslator
from attention_jax.tasks.translation.translating import Trained, batches_of, encode

# The sides of a sentence that the last axes of an array go over, by its name; of any other the target alone.
SIDES = {"encoder": "ss", "decoder": "tt", "cross": "ts", "map": "ts"}
Row = dict[str, np.ndarray]


class Sample(NamedTuple):
    """Sentences and their translations, ends included; the true source words of every target word but the end."""

    source: Sentences
    target: Sentences
    alignments: Alignments
    batches: list[tuple[np.ndarray, Batch]]

    def rows(self, program: Callable[[Batch], Mapping[str, Any]]) -> list[Row]:
        """What a program says of each sentence, in their order, without padding."""
        found: dict[int, Row] = {}
        for indices, batch in self.batches:
            stopping.poll()
            said = jax.device_get(program(batch))
            for row, index in enumerate(indices.tolist()):
                found[index] = {name: self._cut(array[row], name, index) for name, array in said.items()}
        return [found[index] for index in sorted(found)]

    def words(self, opened: OpenedTranslator, index: int) -> tuple[list[str], list[str]]:
        """The words of a sentence and of its translation, the translation's end left out."""
        return opened.source.words(self.source[index]), opened.target.words(self.target[index])[:-1]

    def _cut(self, array: np.ndarray, name: str, index: int) -> np.ndarray:
        lengths = {"s": len(self.source[index]), "t": len(self.target[index])}
        inside: Any = (..., *(slice(lengths[side]) for side in SIDES.get(name, "t")))
        return array[inside]


def sample_of(opened: OpenedTranslator, split: str, count: int) -> Sample:
    """The first sentences of a split with their first translations. Raises UserError where alignments are not known."""
    splits = opened.session.corpus.splits
    if split not in splits:
        raise UserError(f"config.split={split!r}: {opened.folder} has {', '.join(splits)}.")
    chosen = splits[split].references[:count]
    source = encode(opened.source, [reference.source for reference in chosen])
    target = encode(opened.target, [reference.targets[0] for reference in chosen])
    alignments = [reference.alignment or [] for reference in chosen]
    if [len(links) + 1 for links in alignments] != target.lengths.tolist():
        raise UserError(
            f"{opened.folder}: its corpus does not tell which words translate which. Train on the embedded one: "
            "--config=configs/nmt.py:MODEL,embedded."
        )
    return Sample(source, target, alignments, [*_batches(opened, source, target)])


def _batches(opened: OpenedTranslator, source: Sentences, target: Sentences) -> Batches:
    session = opened.session
    return batches_of(Trained(session.programs, (opened.variables,), session.corpus, session.data), source, target)
