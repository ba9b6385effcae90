"""Figures of position encodings: curves against length, what an encoding adds, and where it makes attention look."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention_jax.reports.figures import Figure, Points, new_figure, save
from attention_jax.reports.page import Table

PARTS = ("mean", "low", "high")

Line = tuple[Points, Points, Points, Points]  # lengths, means, and the ends of their intervals


def panels(curves: Mapping[str, Any], measure: str) -> dict[str, dict[str, Line]]:
    """A measure's curves by task and setting, to draw."""
    tasks = dict.fromkeys(task for found in curves.values() for task in found)
    return {
        task: {
            name: (found[task]["length"], *(found[task].get(measure, found[task])[part] for part in PARTS))
            for name, found in curves.items()
            if task in found
        }
        for task in tasks
    }


def length_curves(
    panels: Mapping[str, Mapping[str, Line]],
    trained: int | None,
    path: Path,
    *,
    xlabel: str = "length",
    ylabel: str = "",
    log_y: bool = False,
    caption: str = "By length, means over seeds in their 95% intervals; the dashed line is the trained length.",
) -> Figure:
    """A panel a name, a line with its band a series; the dashed line is where training ended."""
    from matplotlib.ticker import LogLocator

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(rows, columns, 4.4, 3.0)
    for axis, (title, series) in zip(axes.flat, panels.items(), strict=False):
        for place, (name, (x, mean, low, high)) in enumerate(series.items()):
            style: dict[str, Any] = {"color": f"C{place % 10}", "linestyle": ("-", "--", ":")[place // 10 % 3]}
            axis.plot(x, mean, marker="o", markersize=3, linewidth=1.4, label=name, **style)
            axis.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
        if trained is not None:
            axis.axvline(trained, color="grey", linestyle="--", linewidth=0.8)
        if log_y:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(xlabel)
        axis.set_ylabel(ylabel or title)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2 * columns, fontsize=8)
    return save(figure, path, caption)


def images(
    panels: Sequence[tuple[str, np.ndarray]],
    path: Path,
    caption: str,
    *,
    columns: int,
    xlabel: str,
    ylabel: str,
    is_signed: bool = False,
    cell: tuple[float, float] = (2.6, 2.4),
) -> Figure:
    """Matrices as images with their titles, each on its own scale; signed ones around a white zero."""
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(rows, columns, *cell)
    for place, (axis, (title, matrix)) in enumerate(zip(axes.flat, panels, strict=False)):
        top = float(np.abs(matrix).max()) or 1.0
        axis.imshow(
            matrix,
            cmap="RdBu_r" if is_signed else "Reds",
            vmin=-top if is_signed else 0,
            vmax=top,
            aspect="auto",
            interpolation="nearest",
        )
        axis.set_title(title, fontsize=8)
        axis.tick_params(labelsize=7)
        for side in (axis.xaxis, axis.yaxis):
            side.get_major_locator().set_params(integer=True)
        if place >= len(panels) - columns:
            axis.set_xlabel(xlabel, fontsize=8)
        if place % columns == 0:
            axis.set_ylabel(ylabel, fontsize=8)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    return save(figure, path, caption)


def attention_maps(kept: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> Figure:
    """The last layer's attention, the mean of its heads, on a text within and one beyond the trained length."""
    panels = [
        (f"{name}, length {length}", weights[-1].astype(np.float32).mean(0))
        for name, texts in kept.items()
        for length, weights in texts.items()
    ]
    columns = 4 if len(kept) > 1 else 2
    caption = "Attention of the last layer, the mean of its heads, within and beyond the trained length (first seed)."
    return images(panels, path, caption, columns=columns, xlabel="key", ylabel="query")


def distance_curves(series: Mapping[str, tuple[Points, Points]], path: Path, caption: str, ylabel: str) -> Figure:
    """Lines against the distance between query and key."""
    figure, axes = new_figure(1, 1, 6.4, 3.6)
    for place, (name, (x, y)) in enumerate(series.items()):
        axes[0, 0].plot(x, y, label=name, linewidth=1.2, color=f"C{place % 10}", linestyle=("-", "--")[place // 10 % 2])
    axes[0, 0].set_xlabel("distance")
    axes[0, 0].set_ylabel(ylabel)
    axes[0, 0].grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4, fontsize=8)
    return save(figure, path, caption)


def order_table(
    orders: Mapping[str, Any], tasks: Sequence[str], title: str, what: str, height: str, baseline: str
) -> Table:
    """The settings of every task, best first, with their differences to the baseline."""
    columns = ("task", what, height, "from", "to", "difference", "difference from", "difference to", "p, paired t")
    rows = [
        (task, row["setting"], *_parts(row), *_parts(row.get("difference", {})), row.get("p_seeds", ""))
        for task in tasks
        for row in orders[task]
    ]
    note = "Means over seeds with 95% intervals." + (f" Differences are to {baseline}." if baseline else "")
    return Table(title, columns, rows, note)


def _parts(found: Mapping[str, Any]) -> tuple:
    return tuple(found.get(part, "") for part in PARTS)
