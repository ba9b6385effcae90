"""What trained members say of many sentences: translations, alignments, attention."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from attention_jax.data.batching import NO_ROW, in_order, make_buckets
from attention_jax.data.config import DataConfig
from attention_jax.data.corpus import Corpus
from attention_jax.data.sentences import Sentences
from attention_jax.data.tokenizers import EOS, PAD, Tokenizer
from attention_jax.evaluation.translation import Batch, Batches, gather_rows
from attention_jax.modules.attention import NO_EDITS, Edits
from attention_jax.tasks.translation.model import require_room
from attention_jax.tasks.translation.programs import Members, Translator

EVALUATION_TOKENS = 4096  # padded tokens of a side in a batch that is only measured


class Trained(NamedTuple):
    """Members, their programs, the corpus that they were trained on, and what is changed of their heads."""

    programs: Translator
    members: Members
    corpus: Corpus
    data: DataConfig
    edits: Edits = NO_EDITS

    def apply(self, program: Any, batch: Batch) -> Any:
        """One of the programs, on a batch."""
        return program(self.members, batch, dict(self.edits))


def translate_texts(trained: Trained, texts: Sequence[str]) -> list[str]:
    """The translation of each text, whole, however the training pairs were cut."""
    sources = encode(trained.corpus.source, texts)
    return [trained.corpus.target.decode(ids) for ids in translate(trained, sources)]


def translate(trained: Trained, sources: Sentences, numbers: np.ndarray | None = None) -> list[list[int]]:
    """Translations, as ids with the end where one was written, in the order of the sources.

    What is drawn goes by their numbers.
    """
    numbers = np.arange(len(sources)) if numbers is None else numbers

    def program(batch):
        place = np.where(batch["place"] >= 0, numbers[batch["place"]], NO_ROW)
        return trained.apply(trained.programs.translate, batch | {"place": place})

    return [row[row != PAD].tolist() for row in gather_rows(program, batches_of(trained, sources, sources))]


def translate_n_best(trained: Trained, sources: Sentences, count: int) -> list[list[tuple[float, list[int]]]]:
    """The `count` best translations of every source with their scores, in nats over the length penalty, best first."""
    found: dict[int, list[tuple[float, list[int]]]] = {}
    for places, batch in batches_of(trained, sources, sources):
        tokens, scores = jax.device_get(trained.apply(trained.programs.n_best, batch))
        for row, place in enumerate(places.tolist()):
            ids = (hypothesis[hypothesis != PAD].tolist() for hypothesis in tokens[row, :count])
            found[place] = list(zip(scores[row, :count].tolist(), ids, strict=True))
    return [found[place] for place in sorted(found)]


def align(trained: Trained, source: Sentences, target: Sentences) -> list[np.ndarray]:
    """The alignment of every pair, teacher forced: `[target words, source words]`, ends included."""
    program = functools.partial(trained.apply, trained.programs.alignment)
    rows = gather_rows(program, batches_of(trained, source, target))
    return [row[:t, :s] for row, t, s in zip(rows, target.lengths, source.lengths, strict=True)]


def attention(trained: Trained, source: Sentences, target: Sentences) -> list[dict[str, np.ndarray]]:
    """Every layer's and head's weights of every pair, teacher forced, by kind: `[layers, heads, queries, keys]`."""
    found: dict[int, dict[str, np.ndarray]] = {}
    for places, batch in batches_of(trained, source, target):
        kinds = jax.device_get(trained.apply(trained.programs.weights, batch))
        for row, place in enumerate(places.tolist()):
            t, s = len(target[place]), len(source[place])
            sizes = {"encoder": (s, s), "decoder": (t, t), "cross": (t, s)}
            found[place] = {kind: kinds[kind][row, :, :, : sizes[kind][0], : sizes[kind][1]] for kind in kinds}
    return [found[place] for place in sorted(found)]


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> Sentences:
    """Each text's ids with its end."""
    return Sentences.join([*tokenizer.encode(text), EOS] for text in texts)


def batches_of(trained: Trained, source: Sentences, target: Sentences) -> Batches:
    """Every pair once, in few shapes, so that little is compiled: each twice as long as the one before."""
    longest = int(max(source.lengths.max(initial=0), target.lengths.max(initial=0)))
    boundaries, last = [trained.data.buckets[0]], trained.data.buckets[-1]
    while boundaries[-1] < longest:
        boundaries.append(min(2 * boundaries[-1], last) if boundaries[-1] < last else 2 * boundaries[-1])
    room = trained.programs.model.room
    if room is not None and room >= longest:
        boundaries[-1] = min(boundaries[-1], room)
    require_room(trained.programs.model, boundaries[-1])
    tokens = min(EVALUATION_TOKENS, len(source) * boundaries[-1])  # no rows to fill up for a sentence alone
    return in_order(make_buckets(source, target, boundaries, tokens))
