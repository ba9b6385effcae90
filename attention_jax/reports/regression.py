"""Figures of regression: fits on the line and in the plane, kernels, and errors of estimators."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from attention_jax.reports.figures import (
    PALETTE,
    Figure,
    Line,
    Points,
    colours,
    draw_bands,
    legend,
    log_scale,
    new_figure,
    save,
)

PANELS = (
    "by kernel (rows) and width (columns). A query with no sample in reach of its kernel gets the mean of the values."
)
COLOURS = colours(("truth", "estimate", "data"))
CLASS_COLOURS = np.array([[0.80, 0.25, 0.20], [0.20, 0.55, 0.30], [0.20, 0.35, 0.75]])


def kernel_shapes(kernels: Mapping[str, Callable], path: Path) -> Figure:
    """Each kernel's weight against the scaled distance u."""
    u = np.linspace(-3, 3, 601, dtype=np.float32)
    figure, axes = new_figure(1, len(kernels), 2.4, 2.2, sharey=True)
    for axis, (name, kernel) in zip(axes[0], kernels.items(), strict=True):
        axis.plot(u, np.asarray(kernel(u)), color=PALETTE[0])
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("u")
    axes[0, 0].set_ylabel("weight")
    return save(figure, path, "The kernels: the weight of a neighbour at scaled distance u = (q − k) / width.")


def fits(
    estimates: Float[np.ndarray, "rows cols q v"],
    titles: list[list[str]],
    x: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, "n v"],
    queries: Float[np.ndarray, "q d"],
    truth: Float[np.ndarray, "q v"],
    path: Path,
) -> Figure:
    """Data, truth and estimate for every panel; in the plane, class probabilities mixed as colours."""
    rows, cols = estimates.shape[:2]
    figure, axes = new_figure(rows, cols, 2.6, 2.1, sharex=True, sharey=True)
    draw = _draw_line if x.shape[-1] == 1 else _draw_plane
    for row in range(rows):
        for col in range(cols):
            draw(axes[row, col], x, y, queries, truth, estimates[row, col])
            axes[row, col].set_title(titles[row][col], fontsize=9)
    if x.shape[-1] == 1:
        labels, caption = ("x", "y"), f"Data, the noiseless truth and the estimate, {PANELS}"
        legend(figure, axes.flat)
    else:
        labels, caption = ("x₁", "x₂"), f"Estimated class probabilities, mixed as colours, {PANELS}"
    figure.supxlabel(labels[0])
    figure.supylabel(labels[1])
    return save(figure, path, caption)


def _draw_line(axis, x, y, queries, truth, estimate):
    axis.plot(x[:, 0], y[:, 0], "o", markersize=3, alpha=0.5, color=COLOURS["data"], label="data")
    axis.plot(queries[:, 0], truth[:, 0], color=COLOURS["truth"], label="truth")
    axis.plot(queries[:, 0], estimate[:, 0], "--", color=COLOURS["estimate"], label="estimate")


def _draw_plane(axis, x, y, queries, truth, estimate):
    side = round(len(queries) ** 0.5)
    low, high = queries.min(), queries.max()
    half = (high - low) / (side - 1) / 2  # a query is in the middle of its cell
    mixed = (estimate @ CLASS_COLOURS).reshape(side, side, 3)
    axis.imshow(
        0.4 + 0.6 * mixed, origin="lower", extent=(low - half, high + half, low - half, high + half), aspect="auto"
    )
    axis.set(xlim=(low, high), ylim=(low, high))
    axis.scatter(*x.T, c=CLASS_COLOURS[y.argmax(-1)], s=10, edgecolors="white", linewidths=0.4)


def error_curves(found: Sequence[Mapping[str, Any]], path: Path, palette: Mapping[str, str]) -> Figure:
    """Each estimator's error in its interval: a row a kind of function, a column for what varies."""
    kinds, columns = (list(dict.fromkeys(row[name] for row in found)) for name in ("function", "varies"))
    figure, axes = new_figure(len(kinds), len(columns), 3.6, 2.7, sharey="row", sharex="col")
    for row, kind in zip(axes, kinds, strict=True):
        for axis, what in zip(row, columns, strict=True):
            here = [one for one in found if (one["function"], one["varies"]) == (kind, what)]
            draw_bands(axis, {name: _errors_of(here, name) for name in palette}, palette)
            log_scale(axis, "y")
            _at_its_values(axis, [*dict.fromkeys(one["value"] for one in here)])
            axis.set_title(f"{kind} functions", fontsize=9)
            axis.set_xlabel(what if kind == kinds[-1] else "")
        row[0].set_ylabel("squared error")
    legend(figure, axes.flat)
    return save(figure, path, "Squared error against the noiseless truth, means over draws in their 95% intervals.")


def _errors_of(found: Sequence[Mapping[str, Any]], name: str) -> Line:
    rows = [(one["value"], one["mse_mean"], *one["mse_ci95"]) for one in found if one["estimator"] == name]
    x, mean, low, high = zip(*rows, strict=True)
    return x, mean, low, high


def feature_curves(found: Sequence[Mapping[str, Any]], path: Path) -> Figure:
    """The difference that random features make by their count, a line a width; dashes are the rate 1 / √count."""
    figure, axes = new_figure(1, 1, 6.4, 3.6)
    axis = axes[0, 0]
    series = {f"width {one['width']:g} √d": (one["count"], one["mean"], one["low"], one["high"]) for one in found}
    draw_bands(axis, series, colours(series))
    counts = np.array(found[0]["count"], float)
    for one in found:
        axis.plot(counts, one["mean"][-1] * np.sqrt(counts[-1] / counts), "--", color="grey", linewidth=0.8, zorder=1)
    log_scale(axis, "y")
    _at_its_values(axis, counts)
    axis.set_xlabel("random features")
    axis.set_ylabel("root of the mean squared difference")
    legend(figure, [axis])
    caption = (
        "How far linear attention with positive random features is from softmax attention, in its 95% interval over "
        "draws; dashes fall as 1 / √count through the last point."
    )
    return save(figure, path, caption)


def _at_its_values(axis, values: Points) -> None:
    """A logarithmic axis with a tick at every value."""
    axis.set_xscale("log")
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()
