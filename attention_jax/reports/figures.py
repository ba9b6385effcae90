"""Figures shared by every experiment. Matplotlib is imported when a figure is drawn."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

Points = Sequence[float] | np.ndarray
FEW = 12  # points of a line that are marked
WORD = 0.16  # inches that the label of a word takes beside the next
LARGEST = 10.0  # inches of a panel


class Figure(NamedTuple):
    """A picture on disk and what it shows."""

    path: Path
    caption: str


def new_figure(rows: int, cols: int, width: float, height: float, **kwargs: Any):
    """A figure of its own (no global state) with a grid of axes `[rows, cols]`; sizes in inches a cell."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(width * cols, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, cols, squeeze=False, **kwargs)


def save(figure, path: Path, caption: str) -> Figure:
    """Write the figure as PNG and return it with its caption."""
    figure.savefig(path, dpi=120)
    return Figure(path, caption)


def heatmaps(
    weights: Float[np.ndarray, "rows cols queries keys"],
    path: Path,
    caption: str,
    *,
    titles: Sequence[Sequence[str]] | None = None,
    query_labels: Sequence[Sequence[Sequence[str]]] | None = None,
    key_labels: Sequence[Sequence[Sequence[str]]] | None = None,
    xlabel: str = "key",
    ylabel: str = "query",
    top: float | None = None,
    cell: tuple[float, float] = (2.6, 2.3),
) -> Figure:
    """Attention weights as a grid of images, `[rows, cols, queries, keys]`, on one colour scale from 0 to `top`.

    Labels, where given, are words for every query and key of each panel: `labels[row][col][index]`;
    a panel with fewer labels than rows or columns is cropped to them (padding is not shown). `top` is the
    largest weight unless given.
    """
    rows, cols = weights.shape[:2]
    top = float(weights.max()) if top is None else top
    figure, axes = new_figure(rows, cols, *cell)
    for row in range(rows):
        for col in range(cols):
            axis, panel = axes[row, col], weights[row, col]
            if query_labels is not None and key_labels is not None:
                queries, keys = query_labels[row][col], key_labels[row][col]
                if not len(keys):  # the grid has more panels than there are sentences
                    axis.set_axis_off()
                    continue
                panel = panel[: len(queries), : len(keys)]
                _write_words(axis.set_xticks, keys, cell[0], rotation=60, ha="right", rotation_mode="anchor")
                _write_words(axis.set_yticks, queries, cell[1])
            image = axis.imshow(
                panel, cmap="Reds", vmin=0, vmax=float(weights.max()) if top is None else top, aspect="auto"
            )
            if titles is not None:
                axis.set_title(titles[row][col], fontsize=9)
            if row == rows - 1:
                axis.set_xlabel(xlabel)
            if col == 0:
                axis.set_ylabel(ylabel)
    figure.colorbar(image, ax=axes, shrink=0.6, label="weight")
    return save(figure, path, caption)


def panel_size(words: int, least: float) -> float:
    """Inches of a panel's side with so many words, its margin included."""
    return min(max(WORD * words + 1, least), LARGEST)


def _write_words(set_ticks, words: Sequence[str], inches: float, **kwargs: Any) -> None:
    """Labels as close as they can be read: where there are too many words, every second, every third, …"""
    every = max(1, math.ceil(len(words) * WORD / inches))
    # a $ in a corpus is a dollar
    set_ticks(range(0, len(words), every), words[::every], fontsize=8, parse_math=False, **kwargs)


def curves(
    series: Mapping[str, tuple[Points, Points]],
    path: Path,
    caption: str,
    *,
    xlabel: str,
    ylabel: str,
    log_x: bool = False,
    marks: dict[str, tuple[float, float]] | None = None,
) -> Figure:
    """Lines by name, `{name: (x, y)}`, with single points marked, `{name: (x, y)}`."""
    figure, axes = new_figure(1, 1, 6.0, 3.6)
    axis = axes[0, 0]
    for name, (x, y) in series.items():
        axis.plot(x, y, "o-" if len(x) <= FEW else "-", label=name, linewidth=1.5, markersize=4)
    for name, (x0, y0) in (marks or {}).items():
        axis.plot([x0], [y0], "o", label=name)
    if log_x:
        axis.set_xscale("log")
    else:
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4, fontsize=8)
    return save(figure, path, caption)
