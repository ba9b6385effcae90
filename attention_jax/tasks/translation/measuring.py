"""The metrics of translation: losses, BLEU (by length too), and how attention aligns words."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.config import DataConfig
from attention_jax.data.corpus import Corpus, Reference, Split
from attention_jax.data.sentences import Sentences
from attention_jax.data.tokenizers import EOS, WORD_RULES, split_words
from attention_jax.errors import UserError
from attention_jax.evaluation.alignment import agreement, alignment_error_rate, coverage, entropy, monotonicity
from attention_jax.evaluation.bleu import bleu_statistics
from attention_jax.evaluation.translation import (
    BleuTokens,
    bleu_by_length,
    book_scores,
    length_bins,
    losses,
    perplexity_by_length,
    row_losses,
    score_translations,
    spaced,
)
from attention_jax.tasks.translation.session import Session
from attention_jax.tasks.translation.translating import (
    Trained,
    align,
    batches_of,
    boundaries_of,
    encode,
    translate_texts,
)

HELD_OUT = ("validation", "test")
SAMPLED = 512  # how many training pairs are measured


class SplitResult(NamedTuple):
    """A split's metrics and translations."""

    numbers: dict[str, Any]
    hypotheses: list[str]


def measure(session: Session, trained: Trained) -> tuple[dict[str, dict], dict[str, list[str]]]:
    """All metrics of one seed, and its translations, both by split.

    The metrics of the textbook's sentences are in "book", if the config names any.
    """
    splits = trained.corpus.splits
    results = {name: measure_split(trained, splits[name], session.config) for name in HELD_OUT if name in splits}
    numbers: dict[str, dict] = {"train": {"nll": training_nll(trained)}}
    numbers |= {name: result.numbers for name, result in results.items()}
    if session.config.evaluate.test_beams and "test" in splits:
        numbers["test"] |= {"beams": _measure_beams(session, trained)}
    if session.config.evaluate.book_sentences:
        numbers["book"] = _measure_book(trained, session.book)
    return numbers, {name: result.hypotheses for name, result in results.items()}


def _measure_beams(session: Session, trained: Trained) -> dict[str, Any]:
    """BLEU and chrF of the test split, translated with `config.evaluate.test_beams` beams."""
    references = trained.corpus.splits["test"].references
    hypotheses = translate_texts(trained._replace(programs=session.searching), [r.source for r in references])
    return score_translations(hypotheses, [r.targets for r in references], bleu_tokens(session.config))


def _measure_book(trained: Trained, known: Mapping[str, Reference]) -> dict[str, float]:
    references = {name: [split_words(text) for text in found.targets] for name, found in known.items()}
    outputs = translate_texts(trained, [found.source for found in known.values()])
    return book_scores(dict(zip(known, map(split_words, outputs), strict=True)), references)


def measure_split(trained: Trained, split: Split, config: ConfigDict) -> SplitResult:
    """Loss over a split's pairs and BLEU over its sentences, both by length too; and how attention aligns words."""
    programs, tokens = trained.programs, bleu_tokens(config)
    sources, references = [r.source for r in split.references], [r.targets for r in split.references]
    pairs = batches_of(trained, split.source, split.target)
    is_cut = (split.target.tokens[split.target.offsets[1:] - 1] != EOS).any()
    words = 0 if is_cut else sum(len(split_words(text)) + 1 for group in references for text in group)
    hypotheses = translate_texts(trained, sources)
    rows, lengths = row_losses(functools.partial(trained.apply, programs.loss), pairs), [*map(_count_words, sources)]
    bins = length_bins(lengths)
    numbers = {
        **losses(rows, words),
        **score_translations(hypotheses, references, tokens),
        "bleu_by_length": bleu_by_length(lengths, hypotheses, references, bins, tokens),
        "perplexity_by_length": perplexity_by_length(split.source_words, rows, bins),
        **(_alignment(align(trained, split.source, split.target), split) if programs.alignment else {}),
    }
    return SplitResult(numbers, hypotheses)


def require_room_of_held_out(model: nn.Module, data: DataConfig, corpus: Corpus) -> None:
    """Raise UserError where the model has no room for a held-out sentence, at which its training would be lost."""
    for name in HELD_OUT if model.room is not None else ():
        if name in corpus.splits:
            texts = [reference.source for reference in corpus.splits[name].references]
            boundaries_of(model, data.buckets, encode(corpus.source, texts))


def training_nll(trained: Trained) -> float:
    """Nats a target token over evenly spaced training pairs, always the same, without dropout or label smoothing.

    It can compare models with different objectives, which the training loss cannot.
    """
    split = trained.corpus.splits["train"]
    indices = np.linspace(0, len(split.source) - 1, min(SAMPLED, len(split.source))).astype(int)
    sides = (Sentences.join(side[index] for index in indices) for side in (split.source, split.target))
    program = functools.partial(trained.apply, trained.programs.loss)
    return losses(row_losses(program, batches_of(trained, *sides)), 0)["loss"]


def sentence_scores(split: Split, hypotheses: Sequence[str], config: ConfigDict) -> dict[str, np.ndarray]:
    """The statistics from which `bleu` and `bleu_13a` are computed, a row for each sentence."""
    references, tokens = [r.targets for r in split.references], bleu_tokens(config)
    rows = {"bleu_13a": bleu_statistics(hypotheses, references)}
    if tokens is None:
        return rows | {"bleu": rows["bleu_13a"]}
    return rows | {"bleu": bleu_statistics(*spaced(hypotheses, references, tokens[1]), tokenize="none")}


def _alignment(weights: Sequence[np.ndarray], split: Split) -> dict[str, float]:
    """How attention aligns words, without ends; compared with the true alignments if the corpus has them.

    Weights are divided by Σ|α| first, which is 1 but for local attention and families whose weights may be negative.
    """
    weights = [matrix[:-1] / np.maximum(np.abs(matrix[:-1]).sum(-1, keepdims=True), 1e-30) for matrix in weights]
    numbers = {"monotonicity": monotonicity(weights), "coverage": coverage(weights), "entropy": entropy(weights)}
    alignments = [reference.alignment for reference in split.references if reference.alignment is not None]
    if [len(alignment) for alignment in alignments] == [len(matrix) for matrix in weights]:
        numbers["alignment_agreement"] = agreement(weights, alignments)
        numbers["alignment_error_rate"] = alignment_error_rate(weights, alignments)
    return numbers


def bleu_tokens(config: ConfigDict) -> BleuTokens:
    """The tokens that `bleu` counts, by name; None for sacreBLEU's own.

    Raises UserError for an unknown name, and if the library is not installed.
    """
    name = config.evaluate.bleu_tokens
    if name == "13a":
        return None
    if name not in WORD_RULES:
        raise UserError(f"config.evaluate.bleu_tokens={name!r}: choose one of 13a, {', '.join(WORD_RULES)}.")
    return name, WORD_RULES[name].split_of(config.data.languages[1])


def split_of_files(trained: Trained, sources: Sequence[str], targets: Sequence[str]) -> Split:
    """Sentences and translations that were not imported, as a split."""
    corpus = trained.corpus
    references = [Reference(*pair, None) for pair in zip(sources, ([target] for target in targets), strict=True)]
    words = [*map(_count_words, sources)]
    return Split(encode(corpus.source, sources), encode(corpus.target, targets), {}, references, words)


def _count_words(text: str) -> int:
    return len(split_words(text))
