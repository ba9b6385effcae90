"""The figure of a benchmark: how cost grows, beside what is expected."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention_jax.reports.figures import PALETTE, Figure, new_figure, save

CAPTION = "How cost grows: measured (points), expected (dashed), and the fitted exponents with their 95% intervals."
COLUMNS = 4
MANY = 100_000  # sizes from which on their labels would overlap in full
UNITS = (("G", 1e9), ("M", 1e6), ("k", 1e3))
APART = 1.3  # the ratio of two values from which on their labels stand one above the other
SPREAD = 2  # room below and above what was measured


def growths(found: Sequence[Mapping[str, Any]], path: Path) -> Figure:
    """A panel a growth on logarithmic axes: what was measured, and a line with the expected exponent."""
    from matplotlib.ticker import EngFormatter

    rows, brief = math.ceil(len(found) / COLUMNS), EngFormatter(places=0, sep="")  # 10k, 1M
    figure, axes = new_figure(rows, COLUMNS, 3.0, 2.6)
    for axis, growth in zip(axes.flat, found, strict=False):
        sizes, values = (np.array(growth[name], float) for name in ("sizes", "values"))
        axis.loglog(sizes, values, marker="o", markersize=3, color=PALETTE[0], label="measured")
        line = math.exp(np.mean(np.log(values) - growth["expected"] * np.log(sizes))) * sizes ** growth["expected"]
        axis.loglog(sizes, line, linestyle="--", linewidth=1, color="grey", label="expected")
        axis.set_title("\n".join(growth["what"].split(": ")), fontsize=8)
        axis.set_xlabel(growth["of"])
        axis.set_xticks(sizes, [f"{size:,.0f}" if max(sizes) < MANY else brief(size) for size in sizes])
        ends = [max(values), min(values)][: 1 + (max(values) > APART * min(values))]
        axis.set_yticks(ends, [_short(end) for end in ends])
        axis.minorticks_off()
        axis.set_ylim(min(values) / SPREAD, max(values) * SPREAD**2)  # its text stands above
        axis.grid(alpha=0.3)
        p, low, high = growth["exponent"]
        axis.text(0.05, 0.9, f"{p:.2f} [{low:.2f}, {high:.2f}], expected {growth['expected']}", fontsize=7,
                  transform=axis.transAxes)  # fmt: skip
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    return save(figure, path, CAPTION)


def _short(value: float) -> str:
    """A number in three digits: 0.0139, 26.8M."""
    sign, size = next((unit for unit in UNITS if value >= unit[1]), ("", 1.0))
    return f"{value / size:.3g}{sign}"
