"""Figures of what sequence layers cost, and of how far they see."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attention_jax.reports.figures import Figure, colours, legend, line_style, new_figure, save

LABELS = {"flops": "FLOPs", "depth": "operations in a row", "seconds": "seconds", "bytes": "bytes"}


def cost_curves(
    series: Mapping[str, Mapping[str, np.ndarray]], fixed: Mapping[str, int], measures: Sequence[str], path: Path
) -> Figure:
    """Each measure against n at a fixed d, and against d at a fixed n, on logarithmic axes."""
    palette = colours(series)
    figure, axes = new_figure(len(fixed), len(measures), 3.0, 2.6)
    for row, (axis_name, other) in enumerate((("n", "d"), ("d", "n"))):
        for axis, measure in zip(axes[row], measures, strict=True):
            for index, (name, columns) in enumerate(series.items()):
                kept = columns[other] == fixed[other]
                style = line_style(palette, name) | {"linestyle": ("-", "--")[index % 2]}  # some lie on others
                x, y = columns[axis_name][kept], columns[measure][kept]
                axis.loglog(x, y, marker="o", markersize=3, label=name, zorder=3 - index / 10, **style)
            ticks = np.unique(next(iter(series.values()))[axis_name])
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
            axis.set_xlabel(f"{axis_name}, at {other} = {fixed[other]}")
            axis.set_ylabel(LABELS[measure])
            axis.grid(alpha=0.3)
    legend(figure, axes.flat)
    return save(figure, path, "What one layer costs, by length and by width.")


def reach_curves(reach: Mapping[str, Sequence[int]], n: int, path: Path) -> Figure:
    """How many inputs the last output depends on after each layer."""
    palette = colours(reach)
    figure, axes = new_figure(1, 1, 6.4, 3.4)
    for name, counts in reach.items():
        layers = range(1, len(counts) + 1)
        axes[0, 0].plot(layers, counts, marker="o", markersize=3, label=name, **line_style(palette, name))
    axes[0, 0].set_xscale("log")
    axes[0, 0].axhline(n, color="grey", linestyle="--", linewidth=0.8)
    axes[0, 0].set_xlabel("layers; of the GRU, steps")
    axes[0, 0].set_ylabel("inputs that the last output sees")
    axes[0, 0].grid(alpha=0.3)
    legend(figure, axes.flat)
    return save(figure, path, f"Inputs that the last output depends on, of {n}, from the layers' Jacobians.")
