"""Translating lines of text, as they are read."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.sentences import Sentences
from attention_jax.data.tokenizers import UNK
from attention_jax.errors import UserError
from attention_jax.tasks.translation.outputs import ATTENTION_WRITERS
from attention_jax.tasks.translation.translating import Trained, encode, translate, translate_n_best
from attention_jax.training.progress import tell

TRANSLATED_AT_ONCE = 512  # lines


def translate_lines(config: ConfigDict, trained: Trained, lines: Iterable[str], attention_file: str) -> Iterator[str]:
    """The translation of every line, in order; an empty line stays empty.

    With `config.evaluate.n_best` more than 1 each line gives so many, best first: a score, a tab, a translation.
    `attention_file`, if it is not empty, gets the attention of the first lines: as a page (.html) their alignments, as
    an archive (.npz) the weights of every layer and head.
    """
    if attention_file and trained.programs.alignment is None:
        raise UserError(f"--attention={attention_file}: config.model.kwargs.attends='never' has no attention to show.")
    if attention_file and Path(attention_file).suffix not in ATTENTION_WRITERS:
        raise UserError(f"--attention={attention_file}: its name must end in {' or '.join(ATTENTION_WRITERS)}.")
    unknown = words = 0
    for block in _blocks(enumerate(_with_room(trained, lines))):
        texts = {number: text for number, text in block if text.strip()}
        sources = encode(trained.corpus.source, texts.values())
        unknown, words = unknown + int(np.sum(sources.tokens == UNK)), words + len(sources.tokens) - len(sources)
        translated = dict(zip(texts, _hypotheses(config, trained, sources, [*texts]), strict=True)) if texts else {}
        if attention_file and translated:
            best = {number: ids for number, ((_, ids), *_) in translated.items()}
            ATTENTION_WRITERS[Path(attention_file).suffix](trained, texts, sources, best, Path(attention_file))
            attention_file = ""
        for number, _ in block:
            yield from _written(translated.get(number, ()), trained.corpus.target.decode, config.evaluate.n_best)
    if unknown:
        tell(f"{unknown:,} of {words:,} source tokens are not in the vocabulary: each is read as <unk>")
    if attention_file:
        tell(f"no line to translate: {attention_file} was not written")


def _blocks(numbered: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Lines in blocks; the lines before one that cannot be read come before its error."""
    block = []
    try:
        for line in numbered:
            block.append(line)
            if len(block) == TRANSLATED_AT_ONCE:
                yield block
                block = []
    except UserError:
        yield block
        raise
    yield block


def _hypotheses(
    config: ConfigDict, trained: Trained, sources: Sentences, numbers: Sequence[int]
) -> list[list[tuple[float, list[int]]]]:
    """Scores and ids of each source's translations, best first; a single translation has no score (NaN)."""
    if config.evaluate.n_best > 1:
        return translate_n_best(trained, sources, config.evaluate.n_best)
    return [[(math.nan, ids)] for ids in translate(trained, sources, np.array(numbers))]


def _written(
    hypotheses: Sequence[tuple[float, list[int]]], decode: Callable[[Sequence[int]], str], n_best: int
) -> list[str]:
    if n_best == 1:
        return [decode(ids) for _, ids in hypotheses] or [""]
    return [f"{score:.4f}\t{decode(ids)}" for score, ids in hypotheses] or ["\t"] * n_best


def _with_room(trained: Trained, lines: Iterable[str]) -> Iterator[str]:
    """The lines. Raises UserError at one that the model has no room for."""
    if (room := trained.programs.model.room) is None:
        yield from lines
        return
    for number, text in enumerate(lines, start=1):
        if (length := int(encode(trained.corpus.source, [text]).lengths[0])) > room:
            raise UserError(
                f"line {number}: {length} tokens with <eos>, and this model has room for {room}. Shorten it."
            )
        yield text
