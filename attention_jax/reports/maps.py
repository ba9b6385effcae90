"""Maps of attention weights: as grids of images, or between words, with square cells and labels that can be read."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attention_jax.reports.figures import LETTER, Figure, empty_figure, new_figure, save

WORD = 0.17  # inches that the label of a word takes beside the next
LINE = 1.15 / 72  # inches of a line of text, a point of its size
LARGEST = 10.0  # inches of a panel
CELL = 0.4  # inches of a cell at most
PANEL = 2.2  # inches of a panel that has few words or none
TITLE = 28  # letters of a line of a title
SIZE = 8  # points of a label
SLOPE = 0.9  # a slanted label's height beside its length
GAP, NAME, SCALE = 0.2, 0.3, 1.0  # inches: between panels, of the name of an axis, and of the scale of colours


class WordMap(NamedTuple):
    """Weights between words; rows or columns without words have no labels."""

    weights: Float[np.ndarray, "queries keys"]
    queries: Sequence[str] = ()
    keys: Sequence[str] = ()
    title: str = ""


def heatmaps(
    weights: Float[np.ndarray, "rows cols queries keys"],
    path: Path,
    caption: str,
    *,
    titles: Sequence[Sequence[str]] | None = None,
    xlabel: str = "key",
    ylabel: str = "query",
) -> Figure:
    """Attention weights as a grid of images, `[rows, cols, queries, keys]`, from 0 to the largest on one scale."""
    rows, cols = weights.shape[:2]
    figure, axes = new_figure(rows, cols, PANEL + 0.4, PANEL)
    for row, col in np.ndindex(rows, cols):
        image = _draw(axes[row, col], weights[row, col], float(weights.max()), aspect="auto")
        if titles is not None:
            axes[row, col].set_title(titles[row][col], fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel(xlabel)
    for axis in axes[:, 0]:
        axis.set_ylabel(ylabel)
    figure.colorbar(image, ax=axes, shrink=0.6, label="weight")
    return save(figure, path, caption)


def word_maps(
    maps: Sequence[WordMap],
    path: Path,
    caption: str,
    *,
    columns: int,
    xlabel: str,
    ylabel: str,
    least: float = PANEL,
) -> Figure:
    """A panel a map, on one scale from 0 to 1; a NaN is grey.

    All cells are squares of one size, as large as words need, so that a panel of few words is `least` inches. Where
    words are too many, every second, third, … has its label.
    """
    rows = [maps[start : start + columns] for start in range(0, len(maps), columns)]
    cell = _cell_size(max(max(one.weights.shape) for one in maps), least)
    slots = _slots(rows, cell)
    figure = empty_figure(*slots.size)
    for index, one in enumerate(maps):
        row, col = divmod(index, columns)
        axis = figure.add_axes(slots.rectangle(row, col, [cell * count for count in one.weights.shape]))
        image = _draw(axis, one.weights, 1.0, aspect="equal")
        _write_words(axis, cell, one.queries, one.keys)
        axis.set_title(_wrapped(one.title), fontsize=8, pad=3, parse_math=False)
        if col == 0:
            axis.set_ylabel(ylabel, fontsize=9)
        if index + columns >= len(maps):
            axis.set_xlabel(xlabel, fontsize=9)
    scale = figure.add_axes(slots.scale())
    figure.colorbar(image, cax=scale, ticks=(0, 0.5, 1)).set_label("weight", fontsize=9)
    scale.tick_params(labelsize=SIZE)
    return save(figure, path, caption)


class _Slots(NamedTuple):
    """Inches of a grid's columns and rows of panels, and of what stands beside and around these."""

    lefts: list[float]
    widths: list[float]
    aboves: list[float]
    heights: list[float]
    belows: list[float]

    @property
    def size(self) -> tuple[float, float]:
        return sum(self.lefts) + sum(self.widths) + SCALE, sum(self.aboves) + sum(self.heights) + sum(self.belows)

    def rectangle(self, row: int, col: int, sides: Sequence[float]) -> tuple[float, float, float, float]:
        """Where a panel of that height and width goes: the slot's upper left corner, as shares of the figure."""
        (width, height), (tall, wide) = self.size, sides
        left = sum(self.lefts[: col + 1]) + sum(self.widths[:col])
        top = sum(self.aboves[: row + 1]) + sum(self.heights[:row]) + sum(self.belows[:row])
        return left / width, 1 - (top + tall) / height, wide / width, tall / height

    def scale(self) -> tuple[float, float, float, float]:
        """Where the scale of colours goes: at the right, beside the first row."""
        width, height = self.size
        tall = min(PANEL, self.heights[0])
        return 1 - (SCALE - 0.25) / width, 1 - (self.aboves[0] + tall) / height, 0.12 / width, tall / height


def _slots(rows: Sequence[Sequence[WordMap]], cell: float) -> _Slots:
    """Room for every panel, its words and its title."""
    columns = [[row[index] for row in rows if index < len(row)] for index in range(len(rows[0]))]
    widths = [max(cell * one.weights.shape[1] for one in column) for column in columns]
    titles = [max(_inches(_wrapped(one.title).split("\n")) for one in column) for column in columns]
    lefts = [GAP + _inches(word for one in column for word in one.queries) for column in columns]
    belows = [GAP + SLOPE * _inches(word for one in row for word in one.keys) for row in rows]
    return _Slots(
        lefts=[lefts[0] + NAME, *lefts[1:]],
        widths=[*map(max, widths, titles)],
        aboves=[0.1 + 10 * LINE * max(len(_wrapped(one.title).split("\n")) for one in row) for row in rows],
        heights=[cell * max(one.weights.shape[0] for one in row) for row in rows],
        belows=[*belows[:-1], belows[-1] + NAME],
    )


def _draw(axis, panel: Float[np.ndarray, "queries keys"], top: float, aspect: str):
    """A matrix of weights as an image, white at 0, grey where there is no weight."""
    from matplotlib import colormaps

    colour_map = colormaps["Reds"].with_extremes(bad="0.85")
    return axis.imshow(panel, cmap=colour_map, vmin=0, vmax=top, aspect=aspect, interpolation="nearest")


def _write_words(axis, cell: float, queries: Sequence[str], keys: Sequence[str]) -> None:
    """Labels of rows and columns that are `cell` inches: all where there is room, else every second, every third, …"""
    every = max(1, math.ceil(SIZE * LINE / cell))
    slanted = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    for set_ticks, words, kwargs in ((axis.set_xticks, keys, slanted), (axis.set_yticks, queries, {})):
        # a $ in a corpus is a dollar
        set_ticks(range(0, len(words), every), words[::every], fontsize=SIZE, parse_math=False, **kwargs)
    axis.tick_params(length=2, pad=2)


def _cell_size(count: int, least: float) -> float:
    return min(max(least / count, WORD), CELL, LARGEST / count)


def _inches(words: Iterable[str]) -> float:
    """What the longest of some labels takes."""
    return LETTER * max(map(len, words), default=0)


def _wrapped(title: str) -> str:
    return textwrap.fill(title, TITLE)
