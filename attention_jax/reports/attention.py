"""Attention for people: how a sentence's words look at one another, by sentence, layer and head."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from attention_jax.reports.figures import (
    Figure,
    cell_size,
    draw_map,
    heatmaps,
    longest_word,
    new_figure,
    save,
    write_words,
)

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


def attention_figure(
    weights: Sequence[Float[np.ndarray, "target source"]],
    sources: Sequence[Sequence[str]],
    targets: Sequence[Sequence[str]],
    path: Path,
) -> Figure:
    """Which source words each target word looked at, a panel a sentence, as large as the longest needs; loops cut."""
    columns = min(COLUMNS, len(weights))
    rows = -(-len(weights) // columns)
    cuts = [cut_loops(target) for target in targets]
    longest = max(len(labels) for _, labels in cuts), max(map(len, sources))
    grid = np.full((rows, columns, *longest), np.nan)
    words: list[list[list[Sequence[str]]]] = [[[()] * columns for _ in range(rows)] for _ in range(2)]
    for place, (matrix, source, (kept, labels)) in enumerate(zip(weights, sources, cuts, strict=True)):
        row, col = divmod(place, columns)
        words[0][row][col], words[1][row][col] = source, labels
        grid[row, col, : len(kept), : len(source)] = taken(matrix, kept, range(len(source)))
    return heatmaps(
        grid,
        path,
        "Attention: for each word of a translation (rows) the weight of each source word (columns).",
        key_labels=words[0],
        query_labels=words[1],
        xlabel="source",
        ylabel="translation",
        top=1.0,
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
        maps = np.array([[taken(head, queries, keys) for head in layer] for layer in weights[kind]])
        caption = f"{name}. {KINDS[kind]}, by layer and head."
        drawn.append(_small_multiples(maps, rows, columns, folder / f"{kind}.png", caption))
    return drawn


def cut_loops(words: Sequence[str]) -> tuple[list[int | None], list[str]]:
    """Places of the words to show, with their labels: of words that come four times in a row or more, two turns.

    Where turns are left out stands None, with how many they were for a label.
    """
    places: list[int | None] = []
    labels: list[str] = []
    start = 0
    while start < len(words):
        period, turns = _loop_at(words, start)
        shown = period * TURNS if turns >= OFTEN else 1
        places += range(start, start + shown)
        labels += words[start : start + shown]
        if turns >= OFTEN:
            places.append(None)
            labels.append(f"… {turns - TURNS} times more")
        start += period * turns if turns >= OFTEN else 1
    return places, labels


def _loop_at(words: Sequence[str], start: int) -> tuple[int, int]:
    """The shortest period with which words go on four times or more from a place, and how often; else (1, 1)."""
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
    rows, columns = ([place for place, one in enumerate(side) if one is not None] for side in (queries, keys))
    picked = [[one for one in side if one is not None] for side in (queries, keys)]
    grid[np.ix_(rows, columns)] = np.asarray(matrix, np.float64)[np.ix_(*picked)]
    return grid


def _small_multiples(
    maps: Float[np.ndarray, "layers heads queries keys"],
    rows: Sequence[str],
    columns: Sequence[str],
    path: Path,
    caption: str,
) -> Figure:
    """A panel a layer and head on one scale from 0 to 1; words stand at the outer panels alone, which all share."""
    layers, heads, *sizes = maps.shape
    cell = cell_size(max(sizes), HEAD)
    width, height = cell * sizes[1] + 0.15, cell * sizes[0] + 0.3
    beside, below = longest_word(rows) + 1.2, longest_word(columns) + 0.3
    cells = (width + beside / heads, height + below / layers)
    figure, axes = new_figure(layers, heads, *cells, layout="compressed", sharex=True, sharey=True)
    for layer, head in np.ndindex(layers, heads):
        axis = axes[layer, head]
        image = draw_map(axis, maps[layer, head], 1.0)
        axis.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8)
        axis.tick_params(length=2)
    write_words(axes[0, 0], cell, rows, columns, 7)
    for axis in axes.flat:
        axis.tick_params(axis="x", labelrotation=60)
    figure.colorbar(image, ax=axes, shrink=min(1.0, 2.0 / layers), label="weight", aspect=12)
    return save(figure, path, caption)
