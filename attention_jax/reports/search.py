"""What a search found: its winner with fresh seeds, and how its trials led there."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attention_jax.evaluation.metrics import metric
from attention_jax.reports.figures import Figure, colours, draw_bands, legend, log_scale, new_figure, save
from attention_jax.reports.page import Estimate, Table

CHOSE = "seeds that chose"


def winner_table(winner: str, fresh: Mapping[str, Estimate | None], chose: Mapping[str, Estimate | None]) -> Table:
    """The winner by every metric: over fresh seeds, and over those that chose it, which are too good."""
    rows = [(name, fresh.get(name), chose.get(name)) for name in {**fresh, **chose}]
    return Table(f"The winner, {winner}", ("metric", "fresh seeds", CHOSE), rows)


def trials_figure(name: str, values: Sequence[float | None], batch: int, path: Path) -> Figure:
    """Each trial's value, and the best so far; lines between batches. A trial without a value is a cross below."""
    figure, axes = new_figure(1, 1, 6.4, 3.4)
    axis, sign = axes[0, 0], 1 if metric(name).more_is_better else -1
    numbers = np.arange(1, len(values) + 1)
    heights = np.array([np.nan if value is None else sign * value for value in values])
    known = np.isfinite(heights)
    best = np.fmax.accumulate(heights)
    axis.plot(numbers[known], sign * heights[known], "o", color="grey", markersize=4, label="a trial")
    axis.step(numbers, sign * best, where="post", color="#0072B2", label="the best so far")
    if not known.all():
        lost = numbers[~known]
        axis.plot(lost, np.zeros(len(lost)), "x", transform=axis.get_xaxis_transform(), color="#D55E00", clip_on=False,
                  markersize=5, label="dropped or diverged")  # fmt: skip
    for first in range(batch, len(values), batch):
        axis.axvline(first + 0.5, color="grey", linewidth=0.5, alpha=0.4)
    if metric(name).is_log:
        log_scale(axis, "y")
    axis.set_xlabel("trial")
    axis.set_ylabel(name)
    axis.grid(alpha=0.3, axis="y")
    axis.legend(fontsize=8)
    return save(figure, path, f"{name} of every trial, in the order in which they were asked for, a batch at a time.")


def regret_figure(
    result: Mapping[str, Mapping[str, float]],
    intervals: Mapping[str, Mapping[str, Sequence[float]]],
    unit: str,
    path: Path,
) -> Figure:
    """Regret against what was paid, a line a method, means over repeats in their 95% intervals."""
    figure, axes = new_figure(1, 1, 6.4, 4.0)
    lines = {
        name: (
            [float(budget) for budget in found],
            [*found.values()],
            *np.array([intervals.get(name, {}).get(b, (found[b],) * 2) for b in found]).T,
        )
        for name, found in result.items()
    }
    draw_bands(axes[0, 0], lines, colours(lines))
    largest = max((height for found in result.values() for height in found.values()), default=0.0)
    axes[0, 0].set_yscale("symlog", linthresh=largest / 1000 or 1.0)  # a search that found the best has 0
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].set_xlabel("whole trainings paid for")
    axes[0, 0].set_ylabel(f"regret of what was chosen, {unit}")
    legend(figure, [axes[0, 0]])
    return save(figure, path, "How far the best setting found lies from the best there is; means over repeats, 95%.")
