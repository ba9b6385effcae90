"""Attention for people: how a sentence's words look at one another, by sentence, layer and head."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from attention_jax.reports.figures import Figure
from attention_jax.reports.maps import WordMap, word_maps

COLUMNS = 3
OFTEN = 4  # turns in a row from which on words are a loop
TURNS = 2  # of a loop that are shown
PERIOD = 12  # words of a loop at most
HEAD = 1.5  # inches of a head's map that has few words
FIRST = "<bos>"
KINDS = {
    "encoder": "Self-attention of the encoder: for each source word (rows) the weight of every other (columns)",
    "decoder": "Self-attention of the decoder: for each word to write (rows) the weight of each before it (columns)",
    "cross": "Cross-attention: for each word to write (rows) the weight of each source word (columns)",
}
NAMES = {
    "encoder": {"xlabel": "source", "ylabel": "source"},
    "decoder": {"xlabel": "read", "ylabel": "to write"},
    "cross": {"xlabel": "source", "ylabel": "to write"},
}


def attention_figure(
    weights: Sequence[Float[np.ndarray, "target source"]],
    sources: Sequence[Sequence[str]],
    targets: Sequence[Sequence[str]],
    path: Path,
) -> Figure:
    """Which source words each target word looked at, a panel a sentence, as large as the longest needs; loops cut."""
    maps = []
    for matrix, source, target in zip(weights, sources, targets, strict=True):
        kept, labels = cut_loops(target)
        maps.append(WordMap(taken(matrix, kept, range(len(source))), labels, source))
    return word_maps(
        maps,
        path,
        "Attention: for each word of a translation (rows) the weight of each source word (columns).",
        columns=min(COLUMNS, len(maps)),
        xlabel="source",
        ylabel="translation",
    )


def head_figures(
    weights: Mapping[str, Float[np.ndarray, "layers heads queries keys"]],
    source: Sequence[str],
    target: Sequence[str],
    folder: Path,
    name: str,
) -> list[Figure]:
    """Every layer's (rows) and head's (columns) map of one sentence, a figure a kind: encoder, decoder, cross.

    `weights` are teacher forced: the decoder's row t is of writing word t, its column t of the word read there, the one
    before. Loops in `target` are cut.
    """
    read = (range(len(source)), list(source))
    sides = {
        "encoder": (read, read),
        "decoder": (cut_loops(target), cut_loops([FIRST, *target[:-1]])),
        "cross": (cut_loops(target), read),
    }
    drawn: list[Figure] = []
    for kind in (kind for kind in KINDS if kind in weights and len(target)):
        (queries, rows), (keys, columns) = sides[kind]
        layers, heads = weights[kind].shape[:2]
        maps = [
            WordMap(
                taken(weights[kind][layer, head], queries, keys),
                rows if head == 0 else (),
                columns if layer == layers - 1 else (),
                f"layer {layer + 1}, head {head + 1}",
            )
            for layer, head in np.ndindex(layers, heads)
        ]
        caption, names = f"{name}. {KINDS[kind]}, by layer and head.", NAMES[kind]
        drawn.append(word_maps(maps, folder / f"{kind}.png", caption, columns=heads, **names, least=HEAD))
    return drawn


def cut_loops(words: Sequence[str]) -> tuple[list[int | None], list[str]]:
    """Positions of the words to show, with their labels: of words that come four times in a row or more, two turns.

    Where turns are left out stands None, labelled with how many.
    """
    words = list(words)
    positions: list[int | None] = []
    labels: list[str] = []
    start = 0
    while start < len(words):
        period, turns = _loop_at(words, start)
        shown = period * TURNS if turns >= OFTEN else 1
        positions += range(start, start + shown)
        labels += words[start : start + shown]
        if turns >= OFTEN:
            positions.append(None)
            labels.append(f"… {turns - TURNS} more")
        start += period * turns if turns >= OFTEN else 1
    return positions, labels


def _loop_at(words: Sequence[str], start: int) -> tuple[int, int]:
    """The shortest period with which words go on four times or more from a position, and how often; else (1, 1)."""
    for period in range(1, min(PERIOD, (len(words) - start) // OFTEN) + 1):
        turn, turns = words[start : start + period], 1
        while words[start + turns * period : start + (turns + 1) * period] == turn:
            turns += 1
        if turns >= OFTEN:
            return period, turns
    return 1, 1


def taken(
    matrix: Float[np.ndarray, "queries keys"], queries: Sequence[int | None], keys: Sequence[int | None]
) -> Float[np.ndarray, "rows columns"]:
    """Some rows and columns of a matrix; NaN where there is None."""
    grid = np.full((len(queries), len(keys)), np.nan)
    rows, columns = ([index for index, one in enumerate(side) if one is not None] for side in (queries, keys))
    picked = [[one for one in side if one is not None] for side in (queries, keys)]
    grid[np.ix_(rows, columns)] = np.asarray(matrix, np.float64)[np.ix_(*picked)]
    return grid
