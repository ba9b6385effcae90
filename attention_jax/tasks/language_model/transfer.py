"""Does the best learning rate of a narrow model serve a wide one? The answer of a sweep over rates and widths."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from attention_jax.evaluation.statistics import metric_interval
from attention_jax.reports.conclusion import Conclusion, FinishedCell
from attention_jax.reports.extrapolation import length_curves
from attention_jax.reports.figures import Figure, Line
from attention_jax.reports.page import Estimate, Table

Losses = dict[str, dict[int, dict[float, dict[int, float]]]]  # parametrization → width → rate → seed → nats
MEASURED = "validation.loss"
NOTE = (
    "Best: the rate with the least mean validation loss. Steps: by how many rates of the grid each seed's best lies "
    "above its best at the smallest width. Lost: the loss at the smallest width's best rate less that at the width's "
    "own, which the same seeds chose; it is not a number where that rate diverged. ≤ and ≥: the lowest and the highest "
    "rate that was tried, so that the best may lie further, and steps and what is lost are bounds."
)


def conclude(config: ConfigDict, cells: Sequence[FinishedCell], folder: Path, palette: Mapping[str, str]) -> Conclusion:
    """Best rates by width, and what the smallest width's costs the others; nothing of a sweep over other things."""
    del config, palette
    losses, kept = _gathered(cells), sum(len(cell.result["seeds"]) for cell in cells)
    widths = {width for found in losses.values() for width in found}
    rates = {rate for found in losses.values() for by_rate in found.values() for rate in by_rate}
    told = sum(len(seeds) for found in losses.values() for by_rate in found.values() for seeds in by_rate.values())
    if len(widths) < 2 or len(rates) < 2 or told < kept:  # fewer where cells differ in something else too
        return Conclusion({}, [], [])
    found = {name: transferred(by_width) for name, by_width in losses.items()}
    said = tuple(_sentence(name, by_width) for name, by_width in found.items() if len(by_width) > 1)
    return Conclusion({"transfer": found}, [_figure(losses, folder)], [_table(found)], said=said)


def transferred(by_width: Mapping[int, Mapping[float, Mapping[int, float]]]) -> dict[str, dict[str, Any]]:
    """By width: the `best` rate, its `loss`, the `steps` that the best moved, and what is `lost` by the narrowest's.

    A rate at which a seed diverged, which has infinite loss, is nobody's best. `bound` is "≤" or "≥" where the best is
    the lowest or the highest of the width's rates.
    """
    narrowest = min(by_width)
    first = _best(by_width[narrowest])
    grid = sorted({rate for by_rate in by_width.values() for rate in by_rate})
    own = {width: _best_of_seeds(by_rate, grid) for width, by_rate in by_width.items()}
    found = {}
    for width, by_rate in sorted(by_width.items()):
        best = _best(by_rate)
        seeds = sorted(by_rate.get(best, ()))
        lost = [by_rate.get(first, {}).get(seed, math.inf) - by_rate[best][seed] for seed in seeds]
        both = sorted(own[narrowest].keys() & own[width].keys())
        found[str(width)] = {
            "best": best,
            "bound": "≤" if best == min(by_rate) else "≥" if best == max(by_rate) else "",
            "loss": _known(MEASURED, [by_rate[best][seed] for seed in seeds]),
            "steps": _known("steps", [own[width][seed] - own[narrowest][seed] for seed in both]),
            "lost": _known("lost", lost),
        }
    return found


def _known(name: str, values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and interval; NaN where there is no value, or one that is not finite."""
    return metric_interval(name, values) if values and np.isfinite(values).all() else (math.nan,) * 3


def _sentence(name: str, by_width: Mapping[str, Mapping[str, Any]]) -> str:
    narrowest, *_, widest = by_width
    steps, lost = (Estimate(*by_width[widest][key]) for key in ("steps", "lost"))
    ends = any(by_width[width]["bound"] for width in (narrowest, widest))
    bounds = " One of both is the last rate that was tried, so that these are bounds." if ends else ""
    return (
        f"{name}: from width {narrowest} to {widest} the best rate moves by {steps} steps of the grid; width {widest} "
        f"loses {lost} nats at the rate that is best for {narrowest}.{bounds}"
    )


def _best(by_rate: Mapping[float, Mapping[int, float]]) -> float:
    """The rate with the least mean loss; NaN where a seed diverged at every rate."""
    means = {rate: float(np.mean([*of_seeds.values()])) for rate, of_seeds in by_rate.items()}
    known = [rate for rate, mean in means.items() if math.isfinite(mean)]
    return min(known, key=means.__getitem__, default=math.nan)


def _best_of_seeds(by_rate: Mapping[float, Mapping[int, float]], grid: Sequence[float]) -> dict[int, int]:
    """The index of each seed's best rate in the grid; a seed that diverged at every rate has none."""
    seeds = sorted({seed for found in by_rate.values() for seed in found})
    losses = {seed: [by_rate.get(rate, {}).get(seed, math.inf) for rate in grid] for seed in seeds}
    return {seed: int(np.argmin(found)) for seed, found in losses.items() if np.isfinite(found).any()}


def _gathered(cells: Sequence[FinishedCell]) -> Losses:
    losses: Losses = {}
    for cell in cells:
        model, rate = cell.config.model, cell.config.optimizer.learning_rate
        of_name = losses.setdefault(model.parametrization, {})
        of_rate = of_name.setdefault(model.width, {}).setdefault(rate, {})
        for seed, member in zip(cell.result["seeds"], cell.result["members"], strict=True):
            of_rate[seed] = math.inf if cell.result["status"] == "diverged" else member["validation"]["loss"]
    return losses


def _figure(losses: Losses, folder: Path) -> Figure:
    panels = {
        name: {f"width {width}": line for width, rates in sorted(by_width.items()) if (line := _line(rates))}
        for name, by_width in losses.items()
    }
    caption = "Validation loss by learning rate, a line a width: means over seeds in their 95% intervals."
    return length_curves(
        panels,
        None,
        folder / "transfer.png",
        xlabel="learning rate",
        ylabel="nats per token",
        log_x=True,
        caption=caption,
    )


def _line(by_rate: Mapping[float, Mapping[int, float]]) -> Line | None:
    """Rates that no seed diverged at, with means and intervals; None where every rate has one."""
    kept = [rate for rate in sorted(by_rate) if np.isfinite([*by_rate[rate].values()]).all()]
    means = [metric_interval(MEASURED, [*by_rate[rate].values()]) for rate in kept]
    return (kept, *map(list, zip(*means, strict=True))) if kept else None  # type: ignore[return-value]


def _table(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    measured = ("loss", "steps", "lost")
    rows = [
        (name, int(width), f"{row['bound']}{row['best']:.3g}", *(Estimate(*row[key]) for key in measured))
        for name, by_width in found.items()
        for width, row in by_width.items()
    ]
    columns = ("parametrization", "width", "best rate", "its loss (nats)", "steps moved", "lost by transfer (nats)")
    return Table("Best learning rates by width", columns, rows, NOTE)
