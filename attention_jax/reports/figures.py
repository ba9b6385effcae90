"""Figures shared by every experiment, each as PNG and as PDF. Matplotlib is imported when a figure is drawn."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Points = Sequence[float] | np.ndarray
Line = tuple[Points, Points, Points, Points]  # x, means, and the ends of their intervals
FEW = 12  # points of a line that are marked
MOST_BANDS = 8  # that are told apart where they lie over one another
GAP = 0.9  # points between the bars of two lines
DPI = 120
SHORT = 5  # times its lowest value: the highest of a short logarithmic axis
ROW = 0.19  # inches of a legend's line
SAMPLE = 0.6  # inches of a legend's sample of a line, with the gap to the next
LETTER = 0.07  # inches of a letter of eight points
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
    """A colour for each name, in their order; after ten they come again (`line_style` then dashes lines).

    Every figure of a page is handed the same, so that a setting looks alike in all.
    """
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(dict.fromkeys(names))}


def line_style(palette: Mapping[str, str], name: str) -> dict[str, Any]:
    """A name's colour, and dashes that tell it from those before it with the same colour."""
    return {"color": palette[name], "linestyle": DASHES[[*palette].index(name) // len(PALETTE) % len(DASHES)]}


def new_figure(rows: int, cols: int, width: float, height: float, **kwargs: Any):
    """A figure of its own (no global state) with a grid of axes `[rows, cols]`; sizes in inches a cell."""
    figure = empty_figure(width * cols, height * rows, layout="constrained")
    return figure, figure.subplots(rows, cols, squeeze=False, **kwargs)


def _fits(figure, labels: Sequence[str], columns: int) -> bool:
    """Whether a legend of so many columns, which it fills one after the other, is as narrow as the figure."""
    rows = math.ceil(len(labels) / columns)
    longest = [max(map(len, labels[first : first + rows])) for first in range(0, len(labels), rows)]
    return LETTER * sum(longest) + SAMPLE * len(longest) <= figure.get_figwidth()


def empty_figure(width: float, height: float, **kwargs: Any):
    """A figure of its own without axes; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(width, height), **kwargs)
    FigureCanvasAgg(figure)
    return figure


def save(figure, path: Path, caption: str) -> Figure:
    """Write the figure as PNG, and beside it as PDF with text that can be edited; returns the PNG with its caption."""
    import matplotlib

    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells of every font that goes into a PDF
    for old in (path, path.with_suffix(".pdf")):
        old.unlink(missing_ok=True)  # one that is a link is not written through
    figure.savefig(path, dpi=DPI)
    figure.set_layout_engine("none")  # what was found for the one stays for the other
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    return Figure(path, caption, is_wide=figure.get_figwidth() > WIDE)


def log_scale(axis, side: str) -> None:
    """An axis, "x" or "y", by its logarithm; plain numbers at 1, 2, 5, 10, … where these are no powers of many tens.

    A short one has them at 1, 2, 3, 4, …, for of the others it may have one alone.
    """
    from matplotlib.ticker import LogLocator

    getattr(axis, f"set_{side}scale")("log")
    axis.autoscale(axis=side)  # limits that were found on the other scale may be below 0
    own = getattr(axis, f"{side}axis")
    low, high = sorted(own.get_view_interval())
    if low > 0 and high / low < 1000:
        own.set_major_locator(LogLocator(subs=range(1, 10) if high / low < SHORT else (1, 2, 5)))
        own.set_major_formatter("{x:g}")
        own.set_minor_formatter("")


def legend(figure, axes: Iterable[Any]) -> None:
    """Every line of some axes once, by name, above the panels, for which the figure grows.

    It has as many columns as the figure is wide for.
    """
    pairs = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes]
    found = {label: handle for pair in pairs for handle, label in pair}
    if found:
        columns = next(count for count in range(len(found), 0, -1) if count == 1 or _fits(figure, [*found], count))
        rows = math.ceil(len(found) / columns)
        columns = math.ceil(len(found) / rows)
        figure.set_figheight(figure.get_figheight() + ROW * rows)
        figure.legend(found.values(), found, loc="outside upper center", ncols=columns, fontsize=8)


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
    """Lines by name, each in the band between the ends of its interval; no room below 0 where nothing is below it.

    Many lines of few points have a bar at each point instead, side by side on the picture.
    """
    for index, (name, (x, mean, low, high)) in enumerate(series.items()):
        style, marker = line_style(palette, name), "o" if len(x) <= FEW else ""
        lines = axis.plot(x, mean, marker=marker, markersize=3, linewidth=1.4, label=name, **style)
        if has_bars(series):
            lines.append(axis.vlines(x, low, high, color=palette[name], alpha=0.6, linewidth=0.9))
            for line in lines:  # now that the axis has room for what it shows
                line.set_transform(axis.transData + _aside(axis, GAP * (index - (len(series) - 1) / 2)))
        else:
            axis.fill_between(x, low, high, color=palette[name], alpha=0.15, linewidth=0)
    bottom, top = axis.get_ylim()
    if bottom < 0 and not any(value < 0 for _, _, low, _ in series.values() for value in low):
        axis.set_ylim(bottom=max(bottom, -0.03 * top))
    axis.grid(alpha=0.3)


def has_bars(series: Mapping[str, Line]) -> bool:
    """Whether these lines have bars and not bands."""
    return len(series) > MOST_BANDS and all(len(x) <= FEW for x, *_ in series.values())


def _aside(axis, points: float):
    """A shift to the right on the picture, by so many points, whatever the axis's scale."""
    from matplotlib.transforms import ScaledTranslation

    return ScaledTranslation(points / 72, 0, axis.figure.dpi_scale_trans)
