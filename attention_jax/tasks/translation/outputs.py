"""The files of translation: its outputs, their statistics for tests of differences, and its attention."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.corpus import Split
from attention_jax.data.sentences import Sentences
from attention_jax.errors import UserError
from attention_jax.files import no_link, write_whole
from attention_jax.reports.attention import attention_figure, head_figures
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table, render
from attention_jax.tasks.translation.measuring import sentence_scores
from attention_jax.tasks.translation.translating import Trained, align, attention, translate

SHOWN_TRANSLATIONS = 30
MEASURE = "Delete the run's result.json; --mode=train then measures again."
SHOWN_HEADS = 3  # how many sentences have every layer and head drawn
KEPT_ATTENTION = 2  # how many sentences have their attention kept, for a sweep to draw side by side


def write_outputs(config: ConfigDict, folder: Path, trained: Trained, outputs: list[dict[str, list[str]]]) -> None:
    """Write the first seed's translations, and scores.npz, so that tests of differences need not decode again.

    `outputs` are every seed's translations of each split; `trained` is the first seed. For every split scores.npz has
    `SPLIT.bleu` and `SPLIT.bleu_13a`, [seeds, sentences, 10], and a digest of the sentences, `SPLIT.references`. It has
    the first seed's attention on the first held-out pairs too: `attention.0`, … with their words.
    """
    splits = trained.corpus.splits
    scores: dict[str, Any] = {}
    for name, hypotheses in outputs[0].items():
        write_whole(folder / f"predictions.{name}.txt", "".join(f"{text}\n" for text in hypotheses))
        rows = [sentence_scores(splits[name], seed[name], config) for seed in outputs]
        scores |= {f"{name}.{measure}": np.stack([row[measure] for row in rows]) for measure in rows[0]}
        texts = repr([(reference.source, reference.targets) for reference in splits[name].references])
        scores[f"{name}.references"] = hashlib.sha256(texts.encode()).hexdigest()
    if trained.programs.alignment is not None and outputs[0]:
        scores |= _kept_attention(trained, splits[next(iter(outputs[0]))])
    with open(folder / "scores.npz", "wb", opener=no_link) as file:
        np.savez_compressed(file, **scores)


def read_predictions(folder: Path, name: str, count: int) -> list[str]:
    """The first seed's first translations of a split. Raises UserError where the file has fewer, or is damaged."""
    path = folder / f"predictions.{name}.txt"
    try:
        found = path.read_bytes().decode().split("\n")[:-1]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). {MEASURE}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: damaged: byte {error.start:,} is not UTF-8. {MEASURE}") from None
    if len(found) < count:
        raise UserError(f"{path}: damaged: {len(found):,} lines, and {count:,} or more are needed. {MEASURE}")
    return found[:count]


def _kept_attention(trained: Trained, split: Split) -> dict[str, np.ndarray]:
    indices = range(min(KEPT_ATTENTION, len(split.source)))
    sides = [Sentences.join(side[index] for index in indices) for side in (split.source, split.target)]
    words = [tokenizer.words for tokenizer in (trained.corpus.source, trained.corpus.target)]
    kept = {f"attention.{index}": matrix for index, matrix in enumerate(align(trained, *sides))}
    for name, side, read in zip(("source", "target"), sides, words, strict=True):
        kept |= {f"attention.{index}.{name}": np.array(read(side[index])) for index in indices}
    return kept


def _write_attention_page(
    trained: Trained, texts: dict[int, str], sources: Sentences, translations: dict[int, list[int]], path: Path
) -> None:
    first = Sentences.join(sources[i] for i in range(min(len(sources), SHOWN_TRANSLATIONS)))
    outputs = list(translations.values())[: len(first)]
    with tempfile.TemporaryDirectory() as folder:
        figures = [
            _draw_attention(trained, first, outputs, Path(folder) / "attention.png"),
            *_draw_heads(trained, first, outputs, Path(folder)),
        ]
        rows = [
            (text, trained.corpus.target.decode(output)) for text, output in zip(texts.values(), outputs, strict=False)
        ]
        table = Table("Translations", ("source", "translation"), rows)
        write_whole(path, render("Attention", [table], figures, ""))


def _write_attention_archive(
    trained: Trained, texts: dict[int, str], sources: Sentences, translations: dict[int, list[int]], path: Path
) -> None:
    """Write an archive of {"0.cross": [layers, heads, target, source], …, "0.source": words, "0.target": words}, …"""
    del texts
    targets, corpus = Sentences.join(translations.values()), trained.corpus
    arrays: dict[str, Any] = {}
    for index, (line, kinds) in enumerate(zip(translations, attention(trained, sources, targets), strict=True)):
        arrays |= {f"{line}.{kind}": weights for kind, weights in kinds.items()}
        arrays |= {f"{line}.source": corpus.source.words(sources[index])}
        arrays |= {f"{line}.target": corpus.target.words(targets[index])}
    aside = path.with_name(f"{path.name}.partial.npz")
    np.savez_compressed(aside, **arrays)
    os.replace(aside, path)


ATTENTION_WRITERS = {".html": _write_attention_page, ".npz": _write_attention_archive}


def attention_examples(config: ConfigDict, trained: Trained, path: Path) -> Figure:
    """A figure of attention while evenly spaced held-out sentences are translated."""
    splits = trained.corpus.splits
    split = splits["validation" if "validation" in splits else "train"]
    indices = np.linspace(0, len(split.source) - 1, config.evaluate.examples).astype(int)
    sources = Sentences.join(split.source[index] for index in indices)
    return _draw_attention(trained, sources, translate(trained, sources), path)


def _draw_attention(trained: Trained, sources: Sentences, outputs: Sequence[Sequence[int]], path: Path) -> Figure:
    """A figure of each translation against the source words that its words attend to."""
    targets, corpus = Sentences.join(outputs), trained.corpus
    return attention_figure(
        align(trained, sources, targets),
        [corpus.source.words(sources[i]) for i in range(len(sources))],
        [corpus.target.words(targets[i]) for i in range(len(targets))],
        path,
    )


def _draw_heads(trained: Trained, sources: Sentences, outputs: Sequence[Sequence[int]], folder: Path) -> list[Figure]:
    """Maps of every layer and head for the first sentences; none for a model with only one head."""
    indices, corpus = range(min(len(sources), SHOWN_HEADS)), trained.corpus
    first = [Sentences.join(side[index] for index in indices) for side in (sources, outputs)]
    drawn: list[Figure] = []
    for index, kinds in zip(indices, attention(trained, *first), strict=True):
        if sum(maps.shape[0] * maps.shape[1] for maps in kinds.values()) > 1:
            words = corpus.source.words(sources[index]), corpus.target.words(outputs[index])
            inside = folder / str(index)
            inside.mkdir()
            drawn += head_figures(kinds, *words, inside, f"Sentence {index + 1}")
    return drawn
