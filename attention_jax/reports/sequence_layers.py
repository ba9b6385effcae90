"""Figures of what sequence layers cost, and of how far they see."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention_jax.reports.figures import Figure, new_figure, save

LABELS = {"flops": "FLOPs", "depth": "operations in a row", "seconds": "seconds", "bytes": "bytes"}


def cost_curves(
    series: Mapping[str, Mapping[str, np.ndarray]], fixed: Mapping[str, int], measures: Sequence[str], path: Path
) -> Figure:
    """Each measure against n at a fixed d, and against d at a fixed n, on logarithmic axes."""
    figure, axes = new_figure(len(fixed), len(measures), 3.0, 2.6)
    for row, (axis_name, other) in enumerate((("n", "d"), ("d", "n"))):
        for axis, measure in zip(axes[row], measures, strict=True):
            for place, (name, columns) in enumerate(series.items()):
                kept = columns[other] == fixed[other]
                style: dict[str, Any] = {
                    "linestyle": ("-", "--")[place % 2],
                    "zorder": 3 - place / 10,
                }  # some lie on others
                axis.loglog(
                    columns[axis_name][kept], columns[measure][kept], marker="o", markersize=3, label=name, **style
                )
            ticks = np.unique(next(iter(series.values()))[axis_name])
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
            axis.set_xlabel(f"{axis_name}, at {other} = {fixed[other]}")
            axis.set_ylabel(LABELS[measure])
            axis.grid(alpha=0.3)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(series), fontsize=8)
    return save(figure, path, "What one layer costs, by length and by width.")


def reach_curves(reach: Mapping[str, Sequence[int]], n: int, path: Path) -> Figure:
    """How many inputs the last output depends on after each layer."""
    figure, axes = new_figure(1, 1, 6.0, 3.4)
    for name, counts in reach.items():
        axes[0, 0].plot(range(1, len(counts) + 1), counts, "o-", markersize=3, label=name)
    axes[0, 0].set_xscale("log")
    axes[0, 0].axhline(n, color="grey", linestyle="--", linewidth=0.8)
    axes[0, 0].set_xlabel("layers; of the GRU, steps")
    axes[0, 0].set_ylabel("inputs that the last output sees")
    axes[0, 0].grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=len(reach), fontsize=8)
    return save(figure, path, f"Inputs that the last output depends on, of {n}, from the layers' Jacobians.")
