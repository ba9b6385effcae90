"""Conclusions from a sweep over depth: how near models come to each estimator, over seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attention_jax.evaluation.by_group import interval
from attention_jax.reports.conclusion import Conclusion, FinishedCell
from attention_jax.reports.extrapolation import PARTS, length_curves
from attention_jax.reports.figures import colours
from attention_jax.reports.page import Estimate, Table

OTHER_DRAWS = "All answer the same draws: intervals over seeds do not tell how much others would change."
TRUTH = "truth"  # to which the distance is the model's error
ByDepth = dict[str, dict[int, dict[str, dict[str, float]]]]  # group → layers → estimator → mean, low, high


def conclude(config: ConfigDict, cells: Sequence[FinishedCell], folder: Path, palette: Mapping[str, str]) -> Conclusion:
    """Distances to the truth and to each estimator, of all pairs, by the number of layers, over seeds.

    Nothing of a sweep over other things beside the number of layers.
    """
    del palette  # it has the settings' colours, and lines are of estimators
    if len({(cell.group, cell.setting) for cell in cells}) > len({_depth(cell) for cell in cells}):
        return Conclusion({}, [], [])
    pairs = str(config.data.pairs)
    found = by_depth(cells, pairs)
    panels = {
        group: {name: _line(depths, name) for name in next(iter(depths.values()))} for group, depths in found.items()
    }
    names = list(next(iter(panels.values())))
    caption = (
        f"Mean squared distance of the models' answers to the noiseless truth and to each estimator's answers, after "
        f"{pairs} pairs, by depth: means over seeds in their 95% intervals. {OTHER_DRAWS}"
    )
    drawn = length_curves(
        panels,
        None,
        folder / "by_depth.png",
        xlabel="layers",
        ylabel="squared distance",
        log_y=True,
        caption=caption,
        palette=colours(names),
    )
    rows = [
        (*_said(group, found), layers, *(Estimate(**row[name]) for name in names), _nearest(row))
        for group, depths in found.items()
        for layers, row in depths.items()
    ]
    columns = (
        *_said("group", found),
        "layers",
        *(f"to {name}" if name != TRUTH else "error" for name in names),
        "nearest",
    )
    title = f"Squared distance of the models' answers, after {pairs} pairs"
    note = f"Means over seeds with 95% intervals. {OTHER_DRAWS}{_left_out(cells)}"
    return Conclusion({"by_depth": found}, [drawn], [Table(title, columns, rows, note)])


def _depth(cell: FinishedCell) -> tuple[str, int]:
    return cell.group, cell.config.model.layers


def by_depth(cells: Sequence[FinishedCell], pairs: str) -> ByDepth:
    """Of every group and number of layers, the mean distances after so many pairs; seeds that are lost are left out."""
    members: dict[str, dict[int, list[Any]]] = {}
    for cell in sorted(cells, key=lambda cell: cell.config.model.layers):
        if cell.result["status"] != "diverged":
            members.setdefault(cell.group, {}).setdefault(cell.config.model.layers, []).extend(cell.result["members"])
    return {
        group: {layers: _means(found, pairs) for layers, found in depths.items()} for group, depths in members.items()
    }


def _left_out(cells: Sequence[FinishedCell]) -> str:
    """Which seeds the means are without, where there are such."""
    lost = [cell for cell in cells if cell.result["status"] == "diverged"]
    seeds = [f"{_of(cell)}: seeds {', '.join(map(str, cell.result['seeds']))}" for cell in lost]
    return f" Without those that diverged, failed or are missing ({'; '.join(seeds)})." if lost else ""


def _of(cell: FinishedCell) -> str:
    return ", ".join(filter(None, (cell.group, f"{cell.config.model.layers} layers")))


def _means(members: Sequence[Mapping[str, Any]], pairs: str) -> dict[str, dict[str, float]]:
    error = interval([member["error"][pairs] for member in members], f"error.{pairs}")
    return {TRUTH: error} | {
        name: interval([member["distance"][name][pairs] for member in members], f"distance.{name}.{pairs}")
        for name in members[0]["distance"]
    }


def _line(depths: Mapping[int, Mapping[str, Mapping[str, float]]], name: str) -> Any:
    return [*depths], *([row[name][part] for row in depths.values()] for part in PARTS)


def _said(group: str, found: ByDepth) -> tuple[str, ...]:
    """A group's cell, where there are several."""
    return (group,) if len(found) > 1 else ()


def _nearest(row: Mapping[str, Mapping[str, float]]) -> str:
    return min((name for name in row if name != TRUTH), key=lambda name: row[name]["mean"])
