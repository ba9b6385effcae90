"""Figures shared by every experiment, each as PNG and as PDF. Matplotlib is imported when a figure is drawn."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

Points = Sequence[float] | np.ndarray
Line = tuple[Points, Points, Points, Points]  # x, means, and the ends of their intervals
FEW = 12  # points of a line that are marked
DPI = 120
WORD = 0.17  # inches that the label of a word takes beside the next
LETTER = 0.075  # inches of a letter of a label
LINE = 1.15 / 72  # inches of a line of text, a point of its size
LARGEST = 10.0  # inches of a panel
PANEL = 2.2  # inches of a panel that has few words or none
WIDE = 12.0  # inches from which on a page scrolls a figure instead of shrinking it
# Ten colours that the colour-blind tell apart (Okabe & Ito 2008, without yellow; four of Tol 2021, "muted").
PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#999933", "#332288"),
)
DASHES = ("-", "--", ":", "-.")


class Figure(NamedTuple):
    """A picture on disk, what it shows, and whether it is too wide for a page."""

    path: Path
    caption: str
    is_wide: bool = False


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, by its place; after ten they come again (`line_style` then dashes lines).

    Every figure of a page is handed the same, so that a setting looks alike in all.
    """
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(dict.fromkeys(names))}


def line_style(palette: Mapping[str, str], name: str) -> dict[str, Any]:
    """A name's colour, and dashes that tell it from those before it with the same colour."""
    return {"color": palette[name], "linestyle": DASHES[[*palette].index(name) // len(PALETTE) % len(DASHES)]}


def new_figure(rows: int, cols: int, width: float, height: float, layout: Any = "constrained", **kwargs: Any):
    """A figure of its own (no global state) with a grid of axes `[rows, cols]`; sizes in inches a cell."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(width * cols, height * rows), layout=layout)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, cols, squeeze=False, **kwargs)


def save(figure, path: Path, caption: str) -> Figure:
    """Write the figure as PNG, and beside it as PDF with text that can be edited; returns the PNG with its caption."""
    import matplotlib

    figure.savefig(path, dpi=DPI)
    figure.set_layout_engine("none")  # what was found for the one stays for the other
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    return Figure(path, caption, is_wide=figure.get_figwidth() > WIDE)


def legend(figure, axes: Iterable[Any]) -> None:
    """Every line of some axes once, by name, above the panels, in as many columns as the figure has room for."""
    pairs = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes]
    found = {label: handle for pair in pairs for handle, label in pair}
    if found:
        entry = LETTER * max(map(len, found)) + 0.6  # its sample and the gap to the next
        columns = max(1, min(len(found), int(figure.get_figwidth() / entry)))
        figure.legend(found.values(), found, loc="outside upper center", ncols=columns, fontsize=8)


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
) -> Figure:
    """Attention weights as a grid of images, `[rows, cols, queries, keys]`, on one colour scale from 0 to `top`.

    Labels, where given, are words for every query and key of each panel: `labels[row][col][index]`; a panel with fewer
    labels than rows or columns is cropped to them (padding is not shown), its cells are square and as large as words
    need. `top` is the largest weight unless given; a NaN is left blank.
    """
    rows, cols = weights.shape[:2]
    if query_labels is None or key_labels is None:
        figure, axes = new_figure(rows, cols, PANEL + 0.4, PANEL)
    else:
        figure, axes, cell = _labelled_grid(query_labels, key_labels)
    top = float(np.nanmax(weights)) if top is None else top
    for row, col in np.ndindex(rows, cols):
        axis, panel = axes[row, col], weights[row, col]
        if query_labels is not None and key_labels is not None:
            queries, keys = query_labels[row][col], key_labels[row][col]
            if not len(keys):  # the grid has more panels than there are sentences
                axis.set_axis_off()
                continue
            panel = panel[: len(queries), : len(keys)]
        image = draw_map(axis, panel, top, is_square=query_labels is not None)
        if query_labels is not None and key_labels is not None:
            write_words(axis, cell, queries, keys)
        if titles is not None:
            axis.set_title(titles[row][col], fontsize=9)
        if row == rows - 1:
            axis.set_xlabel(xlabel)
        if col == 0:
            axis.set_ylabel(ylabel)
    figure.colorbar(image, ax=axes, shrink=0.6, label="weight")
    return save(figure, path, caption)


def draw_map(axis, panel: Float[np.ndarray, "queries keys"], top: float, is_square: bool = True):
    """A matrix of weights as an image, white at 0, grey where there is no weight (NaN)."""
    from matplotlib import colormaps

    colour_map = colormaps["Reds"].with_extremes(bad="0.85")
    aspect = "equal" if is_square else "auto"
    return axis.imshow(panel, cmap=colour_map, vmin=0, vmax=top, aspect=aspect, interpolation="nearest")


def write_words(axis, cell: float, queries: Sequence[str] = (), keys: Sequence[str] = (), size: float = 8) -> None:
    """Labels of rows and columns that are `cell` inches: all where there is room, else every second, every third, …"""
    every = max(1, math.ceil(LINE * size / cell))
    slanted = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    for set_ticks, words, kwargs in ((axis.set_xticks, keys, slanted), (axis.set_yticks, queries, {})):
        # a $ in a corpus is a dollar
        set_ticks(range(0, len(words), every), words[::every], fontsize=size, parse_math=False, **kwargs)


def cell_size(words: int, panel: float = PANEL) -> float:
    """Inches of a cell's side, where so many words stand beside one another in a panel of that size or larger."""
    return min(max(panel / max(words, 1), WORD), LARGEST / max(words, 1))


def longest_word(words: Iterable[str]) -> float:
    """Inches that the longest of some labels takes."""
    return LETTER * max(map(len, words), default=0)


def _labelled_grid(
    queries: Sequence[Sequence[Sequence[str]]], keys: Sequence[Sequence[Sequence[str]]]
) -> tuple[Any, Any, float]:
    """A figure and axes whose cells are all of one size, with room for every label, and that size in inches."""
    heights = [max(1, *map(len, row)) if row else 1 for row in queries]
    widths = [max(1, *(len(row[col]) for row in keys)) for col in range(len(keys[0]))]
    cell = cell_size(max(*heights, *widths))
    beside = longest_word(word for row in queries for panel in row for word in panel) + 0.4
    below = longest_word(word for row in keys for panel in row for word in panel) + 0.6
    width = sum(cell * count + beside for count in widths) + 1.0  # the scale of colours
    height = sum(cell * count + below for count in heights)
    rows, cols = len(heights), len(widths)
    ratios = {"width_ratios": widths, "height_ratios": heights}
    return *new_figure(rows, cols, width / cols, height / rows, layout="compressed", gridspec_kw=ratios), cell


def curves(
    series: Mapping[str, tuple[Points, Points]],
    path: Path,
    caption: str,
    *,
    xlabel: str,
    ylabel: str,
    log_x: bool = False,
    marks: dict[str, tuple[float, float]] | None = None,
    palette: Mapping[str, str] | None = None,
) -> Figure:
    """Lines by name, `{name: (x, y)}`, with single points marked, `{name: (x, y)}`."""
    palette = palette or colours([*series, *(marks or {})])
    figure, axes = new_figure(1, 1, 6.4, 3.6)
    axis = axes[0, 0]
    for name, (x, y) in series.items():
        style = line_style(palette, name)
        axis.plot(x, y, marker="o" if len(x) <= FEW else "", label=name, linewidth=1.5, markersize=4, **style)
    for name, (x0, y0) in (marks or {}).items():
        axis.plot([x0], [y0], "o", label=name, color=palette[name])
    if log_x:
        axis.set_xscale("log")
    else:
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    axis.grid(alpha=0.3)
    legend(figure, [axis])
    return save(figure, path, caption)


def draw_bands(axis, series: Mapping[str, Line], palette: Mapping[str, str]) -> None:
    """Lines by name, each in the band between the ends of its interval."""
    for name, (x, mean, low, high) in series.items():
        style = line_style(palette, name)
        axis.plot(x, mean, marker="o" if len(x) <= FEW else "", markersize=3, linewidth=1.4, label=name, **style)
        axis.fill_between(x, low, high, color=palette[name], alpha=0.15, linewidth=0)
    axis.grid(alpha=0.3)
