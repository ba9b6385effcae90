"""Trained models over many sentences: translations, alignments, attention."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from attention_jax import stopping
from attention_jax.data.batching import NO_ROW, in_order, make_buckets
from attention_jax.data.config import DataConfig
from attention_jax.data.corpus import Corpus
from attention_jax.data.sentences import Sentences
from attention_jax.data.tokenizers import EOS, PAD, Tokenizer
from attention_jax.evaluation.translation import Batch, Batches, gather_rows
from attention_jax.modules.attention import NO_EDITS, Edits
from attention_jax.tasks.translation.model import require_room
from attention_jax.tasks.translation.programs import Members, Translator
from attention_jax.training.placement import spread_rows, whole

EVALUATION_TOKENS = 2048  # padded tokens on each side of a batch in evaluation, those of every beam
FEW = 8  # sentences that make a small batch, so that an example is not as much work as a split


class Trained(NamedTuple):
    """The members that translate together, their programs, their corpus, and the edits of their heads."""

    programs: Translator
    members: Members
    corpus: Corpus
    data: DataConfig
    edits: Edits = NO_EDITS

    def apply(self, program: Any, batch: Batch) -> Any:
        """One of the programs, on a batch, its rows over all devices. Raises Interrupted where a stop is asked for."""
        stopping.poll()
        return whole(program(*self.arguments(batch)))

    def arguments(self, batch: Batch) -> tuple[Members, Batch, dict]:
        """What a program takes."""
        return self.members, spread_rows(batch, self.members), dict(self.edits)


def calls(trained: Trained, program: Any, source: Sentences, target: Sentences, beams: int) -> Iterator[tuple]:
    """A program that is applied to pairs, with the arguments of a batch of each shape; none where there is no such."""
    batches = batches_of(trained, source, target, beams=beams) if program is not None else ()
    of_shapes = {batch["source"].shape: batch for _, batch in batches}
    return ((program, *trained.arguments(batch)) for batch in of_shapes.values())


def translate_texts(trained: Trained, texts: Sequence[str], numbers: Sequence[int] | None = None) -> list[str]:
    """The translation of each text; no text is truncated, whatever happened to training pairs.

    If words are drawn at random, `numbers` decide each text's random key; None: 0, 1, …
    """
    sources = encode(trained.corpus.source, texts)
    chosen = None if numbers is None else np.array(numbers, int)
    return [trained.corpus.target.decode(ids) for ids in translate(trained, sources, chosen)]


def translate(trained: Trained, sources: Sentences, numbers: np.ndarray | None = None) -> list[list[int]]:
    """The ids of each source's translation, in the order of the sources; with the end, if one was written.

    If words are drawn at random, `numbers` decide each source's random key.
    """
    numbers = np.arange(len(sources)) if numbers is None else numbers

    def program(batch):
        index = np.where(batch["index"] >= 0, numbers[batch["index"]], NO_ROW)
        return trained.apply(trained.programs.translate, batch | {"index": index})

    return [row[row != PAD].tolist() for row in gather_rows(program, _searched(trained, sources))]


def translate_n_best(trained: Trained, sources: Sentences, count: int) -> list[list[tuple[float, list[int]]]]:
    """The `count` best translations of every source, best first, with scores: nats divided by the length penalty."""
    of_sources: dict[int, list[tuple[float, list[int]]]] = {}
    for indices, batch in _searched(trained, sources):
        tokens, scores = trained.apply(trained.programs.n_best, batch)
        for row, index in enumerate(indices.tolist()):
            ids = (hypothesis[hypothesis != PAD].tolist() for hypothesis in tokens[row, :count])
            of_sources[index] = list(zip(scores[row, :count].tolist(), ids, strict=True))
    return [of_sources[index] for index in sorted(of_sources)]


def align(trained: Trained, source: Sentences, target: Sentences) -> list[np.ndarray]:
    """The alignment of every pair, teacher forced: `[target words, source words]`, ends included."""
    program = functools.partial(trained.apply, trained.programs.alignment)
    rows = gather_rows(program, batches_of(trained, source, target))
    return [row[:t, :s] for row, t, s in zip(rows, target.lengths, source.lengths, strict=True)]


def attention(trained: Trained, source: Sentences, target: Sentences) -> list[dict[str, np.ndarray]]:
    """The weights of all layers and heads for every pair, teacher forced, by kind: `[layers, heads, Q, K]`."""
    of_pairs: dict[int, dict[str, np.ndarray]] = {}
    for indices, batch in batches_of(trained, source, target):
        kinds = trained.apply(trained.programs.weights, batch)
        for row, index in enumerate(indices.tolist()):
            t, s = len(target[index]), len(source[index])
            sizes = {"encoder": (s, s), "decoder": (t, t), "cross": (t, s)}
            of_pairs[index] = {kind: kinds[kind][row, :, :, : sizes[kind][0], : sizes[kind][1]] for kind in kinds}
    return [of_pairs[index] for index in sorted(of_pairs)]


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> Sentences:
    """Each text's ids, with an end."""
    return Sentences.join([*tokenizer.encode(text), EOS] for text in texts)


def boundaries_of(model: nn.Module, buckets: Sequence[int], *sides: Sentences) -> list[int]:
    """The lengths that sentences are padded to. Raises UserError where the model has no room for the longest."""
    longest = max(int(side.lengths.max(initial=0)) for side in sides)
    boundaries, last = [buckets[0]], buckets[-1]
    while boundaries[-1] < longest:
        boundaries.append(min(2 * boundaries[-1], last) if boundaries[-1] < last else 2 * boundaries[-1])
    if model.room is not None and model.room >= longest:
        boundaries[-1] = min(boundaries[-1], model.room)
    require_room(model, boundaries[-1])
    return boundaries


def _searched(trained: Trained, sources: Sentences) -> Batches:
    """The batches whose translations are searched for."""
    return batches_of(trained, sources, sources, beams=trained.programs.beams)


def batches_of(trained: Trained, source: Sentences, target: Sentences, *, beams: int = 1) -> Batches:
    """Every pair once, in batches of few shapes, each twice as long as the one before, so that little is compiled.

    With `beams` of each sentence in memory a batch has as many tokens as without. However many pairs there are, a
    length has two shapes: that of full batches, and that of up to `FEW` pairs.
    """
    boundaries = boundaries_of(trained.programs.model, trained.data.buckets, source, target)
    most = FEW if len(source) <= FEW else EVALUATION_TOKENS
    buckets = make_buckets(source, target, boundaries, EVALUATION_TOKENS // beams)
    return in_order([bucket._replace(batch_size=min(bucket.batch_size, most)) for bucket in buckets])
