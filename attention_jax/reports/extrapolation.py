"""Figures of position encodings: curves against length, what an encoding adds, and where it makes attention look."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention_jax.reports.figures import (
    FEW,
    LETTER,
    PALETTE,
    Figure,
    Line,
    Points,
    colours,
    draw_bands,
    has_bars,
    legend,
    line_style,
    log_scale,
    new_figure,
    save,
)
from attention_jax.reports.page import Estimate, PValue, Ratio, Table

PARTS = ("mean", "low", "high")
COLUMN, HEIGHT, ROOM = 1.25, 0.17, 1.1  # inches: of a length, of a setting, and of what stands around a panel
TESTS = {"p_seeds": "p, t", "p_adjusted": "p, Holm"}  # of differences, and their columns


def panels(curves: Mapping[str, Any], measure: str) -> dict[str, dict[str, Line]]:
    """A measure's curves by group and setting, to draw."""
    groups = dict.fromkeys(group for found in curves.values() for group in found)
    return {
        group: {
            name: (found[group]["length"], *(found[group].get(measure, found[group])[part] for part in PARTS))
            for name, found in curves.items()
            if group in found
        }
        for group in groups
    }


def length_curves(
    panels: Mapping[str, Mapping[str, Line]],
    trained: int | None,
    path: Path,
    *,
    xlabel: str = "length",
    ylabel: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
    ticks: Sequence[float] = (),
    most_columns: int = 2,
    caption: str = "",
    palette: Mapping[str, str] | None = None,
) -> Figure:
    """A panel a name, a line with its band a series; the dashed line is where training ended.

    Without a `ylabel`, each panel's is its name; without `ticks`, those of x are found; without a caption there is one
    for means over seeds. More lines of few points than there are colours are rows of a column a length instead.
    """
    palette = palette or colours(name for series in panels.values() for name in series)
    ended = "" if trained is None else "; the dashed line is the trained length"
    caption = caption or f"By length, means over seeds in their 95% intervals{ended}."
    lines = [line for series in panels.values() for line in series.values()]
    if max(map(len, panels.values())) > len(PALETTE) and all(len(x) <= FEW for x, *_ in lines):
        return _length_rows(panels, trained, path, xlabel, ylabel, log_y, caption, palette)
    columns = min(most_columns, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(rows, columns, *((8.8 / columns, 2.8) if columns > 1 else (6.4, 3.4)))
    for axis, (title, series) in zip(axes.flat, panels.items(), strict=False):
        draw_bands(axis, series, palette)
        if trained is not None:
            axis.axvline(trained, color="grey", linestyle="--", linewidth=0.8)
        if log_x:
            log_scale(axis, "x")
        if log_y:
            log_scale(axis, "y")
        if ticks:
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_xticks([], minor=True)
        elif not log_x:
            axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(xlabel)
        axis.set_ylabel(title if ylabel is None else ylabel)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    legend(figure, axes.flat[: len(panels)])
    beside = " Points of one length stand side by side." if any(map(has_bars, panels.values())) else ""
    return save(figure, path, caption + beside)


def _length_rows(
    panels: Mapping[str, Mapping[str, Line]],
    trained: int | None,
    path: Path,
    xlabel: str,
    ylabel: str | None,
    log_y: bool,
    caption: str,
    palette: Mapping[str, str],
) -> Figure:
    """A row of panels a name, a panel a length, in it a row a series, named on the left, at the same height in all."""
    lengths = sorted({float(at) for series in panels.values() for x, *_ in series.values() for at in x})
    names = [name for name in palette if any(name in series for series in panels.values())]
    width = COLUMN + LETTER * max(map(len, names)) / len(lengths)
    size = width, HEIGHT * len(names) + ROOM
    figure, axes = new_figure(len(panels), len(lengths), *size, sharex="row", sharey=True)
    for row, (title, series) in zip(axes, panels.items(), strict=True):
        for axis, length in zip(row, lengths, strict=True):
            _draw_rows(axis, {name: line for name, line in series.items() if length in line[0]}, length, names, palette)
            axis.set_title(f"{length:g}", fontsize=8)
            axis.tick_params(axis="x", labelsize=7)
            for side in ("left", "right"):
                axis.spines[side].set(linestyle="--" if length == trained else "-")
        if log_y:
            log_scale(row[0], "x")
        row[0].set_yticks(range(len(names)), names, fontsize=7)
        row[0].set_ylabel(title, fontsize=9)
        row[len(lengths) // 2].set_xlabel(ylabel or title)
    axes[0, 0].set_ylim(len(names) - 0.3, -0.7)
    figure.suptitle(xlabel, fontsize=9)
    between = ", that of the trained length between dashed lines" if trained in lengths else ""
    return save(figure, path, f"{caption} A column a length{between}.")


def _draw_rows(axis, series: Mapping[str, Line], length: float, names: Sequence[str], palette: Mapping[str, str]):
    """The values of series at a length, each in its interval."""
    for name, (x, *parts) in series.items():
        mean, low, high = (part[list(x).index(length)] for part in parts)
        axis.plot([low, high], [names.index(name)] * 2, color=palette[name], linewidth=1.2)
        axis.plot([mean], [names.index(name)], "o", color=palette[name], markersize=3)
    axis.grid(alpha=0.3)


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
    for index, (axis, (title, matrix)) in enumerate(zip(axes.flat, panels, strict=False)):
        top = float(np.abs(matrix).max()) or 1.0
        axis.imshow(
            matrix,
            cmap="RdBu_r" if is_signed else "Reds",
            vmin=-top if is_signed else 0,
            vmax=top,
            aspect="equal" if matrix.shape[0] == matrix.shape[1] else "auto",
            interpolation="nearest",
        )
        axis.set_title(title, fontsize=8)
        axis.tick_params(labelsize=7)
        for side in (axis.xaxis, axis.yaxis):
            side.get_major_locator().set_params(integer=True)
        if index >= len(panels) - columns:
            axis.set_xlabel(xlabel, fontsize=8)
        if index % columns == 0:
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


def distance_curves(
    series: Mapping[str, tuple[Points, Points]],
    path: Path,
    caption: str,
    ylabel: str,
    palette: Mapping[str, str] | None = None,
) -> Figure:
    """Lines against the distance between query and key."""
    palette = palette or colours(series)
    figure, axes = new_figure(1, 1, 6.4, 3.6)
    for name, (x, y) in series.items():
        axes[0, 0].plot(x, y, label=name, linewidth=1.2, **line_style(palette, name))
    axes[0, 0].set_xlabel("distance")
    axes[0, 0].set_ylabel(ylabel)
    axes[0, 0].grid(alpha=0.3)
    legend(figure, axes.flat)
    return save(figure, path, caption)


def order_table(
    orders: Mapping[str, Any],
    groups: Sequence[str],
    title: str,
    what: str,
    height: str,
    baselines: Mapping[str, str],
) -> Table:
    """The settings of every group, best first, with their differences to its baseline; the best of each in bold.

    Of settings that lost seeds, whose means are of luck, none is the best.
    """
    every = [(group, row) for group in groups for row in orders[group]]
    contrast, cell = ("ratio", Ratio) if any("ratio" in row for _, row in every) else ("difference", Estimate)
    has_lost = any("lost" in row for _, row in every)
    rows = [
        (
            group,
            row["setting"],
            _estimate(row),
            _estimate(row.get(contrast, {}), cell),
            *(_p(row, test) for test in TESTS),
            *[_lost(row)] * has_lost,
        )
        for group, row in every
    ]
    firsts = {group: orders[group][0]["mean"] for group in groups if orders[group] and "lost" not in orders[group][0]}
    best = {
        (index, 2) for index, (group, row) in enumerate(every) if "lost" not in row and row["mean"] == firsts.get(group)
    }
    note = "Means over seeds with 95% intervals." + _to(baselines, contrast)
    if any("p_adjusted" in row for _, row in every):
        note += " Holm's correction is over all rows."
    columns = ("group", what, height, contrast, *TESTS.values(), *["lost"] * has_lost)
    return Table(title, columns, rows, note, best=best)


def _lost(row: Mapping[str, Any]) -> str:
    """How many seeds of a setting have no value: 1 of 3."""
    return f"{row['lost']} of {row['lost'] + row['seeds']} seeds" if "lost" in row else ""


def _to(baselines: Mapping[str, str], contrast: str) -> str:
    """A sentence on what differences are to."""
    known = {group: own for group, own in baselines.items() if own}
    if len({*known.values()}) == 1:
        return f" {contrast.capitalize()}s are to {next(iter(known.values()))}."
    each = "; ".join(f"{group}: {own}" for group, own in known.items())
    return f" {contrast.capitalize()}s are to each group's baseline ({each})." if known else ""


def length_table(orders: Mapping[str, Any], measure: str, baselines: Mapping[str, str]) -> Table:
    """The settings at each length of each group, as `order_table` has them; folded, for it is long."""
    title, said = "By length in tokens, with differences", measure.replace("_", " ")
    return order_table(orders, list(orders), title, "setting", said, baselines)._replace(folded=True)


def _estimate(found: Mapping[str, Any], cell: type[Estimate] = Estimate) -> Estimate | None:
    return cell(found["mean"], found.get("low"), found.get("high")) if "mean" in found else None


def _p(row: Mapping[str, Any], test: str) -> PValue | None:
    return PValue(row[test]) if test in row else None
