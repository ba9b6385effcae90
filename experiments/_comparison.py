"""Settings against one another, by task and length: curves, orders and mean reciprocal ranks, all over seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.evaluation.extrapolation import reciprocal_ranks
from attention_jax.evaluation.metrics import metric
from attention_jax.evaluation.significance import paired_t
from attention_jax.evaluation.statistics import mean_interval
from attention_jax.reports.figures import Line
from attention_jax.reports.page import Table
from attention_jax.runs.experiment import FinishedCell
from attention_jax.sweeps.cells import flatten, place_of

PARTS = ("mean", "low", "high")


class Measured(NamedTuple):
    """What was measured of one seed: measures by length, and the number that settings are ordered by."""

    curves: Mapping[str, Mapping[str, float]]
    value: float


LOST = Measured({}, math.nan)  # of a seed that diverged
Scores = dict[str, dict[str, dict[int, Measured]]]  # setting → task → seed


def settings_of(config: ConfigDict, cells: Sequence[FinishedCell], default: str) -> list[str]:
    """What makes each cell's setting: its values, each said once, with their keys where values alone do not tell.

    Seeds and what `config.sweep.within` names make no setting.
    """
    apart = ("seeds", *config.sweep.within)
    overrides = [{key: str(value) for key, value in cell.overrides.items() if key not in apart} for cell in cells]
    brief = [", ".join(dict.fromkeys(one.values())) or default for one in overrides]
    if len(set(brief)) == len({tuple(one.items()) for one in overrides}):
        return brief
    return [", ".join(f"{key} {value}" for key, value in one.items()) or default for one in overrides]


def task_of(config: ConfigDict, cell: FinishedCell, default: str) -> str:
    """What a cell's setting is compared within: its task, and what else `config.sweep.within` names."""
    flat = flatten(cell.config) | cell.overrides
    keys = [key for key in dict.fromkeys(("data.task", *config.sweep.within)) if key in flat]
    named = [("" if key == "data.task" else f"{key.rpartition('.')[2]} ") + str(flat[key]) for key in keys]
    return ", ".join(named) or default


def gather(
    config: ConfigDict,
    cells: Sequence[FinishedCell],
    names: Sequence[str],
    default: str,
    measured: Callable[[FinishedCell, Mapping[str, Any]], Measured],
) -> Scores:
    """Every seed of every cell by setting and task; a seed that diverged is lost.

    Raises UserError where two cells are of one setting, task and seed: one would hide the other.
    """
    scores: Scores = {}
    for name, cell in zip(names, cells, strict=True):
        task = task_of(config, cell, default)
        found = scores.setdefault(name, {}).setdefault(task, {})
        members = cell.result.get("members") or [cell.result]
        for seed, member in zip(cell.result["seeds"], members, strict=False):
            if seed in found:
                raise UserError(
                    f"sweep: two cells are of the setting {name!r}, task {task!r} and seed {seed}: add the key that "
                    f"tells them apart to config.sweep.within={config.sweep.within}."
                )
            found[seed] = LOST if cell.result["status"] == "diverged" else measured(cell, member)
    return scores


def measures_of(scores: Scores) -> list[str]:
    """The names of the measures, the first one leading."""
    every = (member for tasks in scores.values() for seeds in tasks.values() for member in kept(seeds))
    return list(next(every).curves)


def kept(seeds: Mapping[int, Measured]) -> list[Measured]:
    """What was measured of the seeds that were not lost."""
    return [member for member in seeds.values() if member.curves]


def tasks_of(scores: Scores) -> list[str]:
    """The tasks in the order in which they come."""
    return list(dict.fromkeys(task for found in scores.values() for task in found))


def baseline_of(config: ConfigDict, cells: Sequence[FinishedCell], names: Sequence[str]) -> str:
    """The setting that `config.sweep.baseline` names, the first where it names none; "" where that is not finished."""
    try:
        return names[place_of([cell.overrides for cell in cells], config.sweep.baseline)]
    except UserError:
        return ""


def answer(scores: Scores, baseline: str) -> dict[str, Any]:
    """`curves` by setting and task, `mrr` by setting, and `orders` by task with differences to the baseline."""
    ranked = {name: interval(values, "mrr") for name, values in ranks(scores).items()}
    return {
        "curves": {
            name: {task: _curve(kept(seeds)) for task, seeds in tasks.items() if kept(seeds)}
            for name, tasks in scores.items()
        },
        "mrr": ranked,
        "orders": {task: _order(scores, task, baseline) for task in tasks_of(scores)}
        | {"mrr": sorted(ranked, key=lambda name: -ranked[name]["mean"])},
    }


def ranks(scores: Scores) -> dict[str, np.ndarray]:
    """Each setting's mean reciprocal rank over the tasks, of each seed that all settings have on all tasks.

    A seed that was lost is the last.
    """
    tasks, seeds = shared_by_all(scores)
    height = metric(measures_of(scores)[0]).height
    heights = np.array(
        [[[height(found[task][seed].value) for seed in seeds] for task in tasks] for found in scores.values()]
    )
    return dict(zip(scores, reciprocal_ranks(heights), strict=True)) if heights.size else {}


def shared_by_all(scores: Scores) -> tuple[list[str], list[int]]:
    """The tasks that every setting has, and the seeds that it has on all of these."""
    tasks = [task for task in tasks_of(scores) if all(task in found for found in scores.values())]
    seeds = [set(found[task]) for found in scores.values() for task in tasks]
    return tasks, sorted(set.intersection(*seeds)) if seeds else []


def interval(values: Sequence[float] | np.ndarray, measure: str = "") -> dict[str, float]:
    """The mean and the ends of its interval, which stay within what the measure can be."""
    found = mean_interval(values)
    ends = np.clip(found, metric(measure).low, metric(measure).high) if measure else found
    return dict(zip(PARTS, map(float, ends), strict=True))


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


def order_table(
    orders: Mapping[str, Any], tasks: Sequence[str], title: str, what: str, height: str, baseline: str
) -> Table:
    """The settings of every task, best first, with their differences to the baseline."""
    columns = ("task", what, height, "from", "to", "difference", "difference from", "difference to", "p, paired t")
    rows = [
        (task, row["setting"], row["mean"], row["low"], row["high"], *_difference(row))
        for task in tasks
        for row in orders[task]
    ]
    note = "Means over seeds with 95% intervals." + (f" Differences are to {baseline}." if baseline else "")
    return Table(title, columns, rows, note)


def _curve(members: Sequence[Measured]) -> dict[str, Any]:
    """Lengths with means and intervals of the first measure, and of the others by name."""
    first, *others = members[0].curves
    lengths = list(members[0].curves[first])

    def line(measure):
        rows = [interval([member.curves[measure][length] for member in members], measure) for length in lengths]
        return {part: [row[part] for row in rows] for part in PARTS}

    return {"length": [*map(_number, lengths)], **line(first), **{name: line(name) for name in others}}


def _number(length: str) -> float:
    """A length, or the middle of a range of them."""
    middle = float(np.mean([int(end) for end in length.split("-")]))
    return int(middle) if middle.is_integer() else middle


def _order(scores: Scores, task: str, baseline: str) -> list[dict[str, Any]]:
    """Settings on a task, the best first, each with its paired difference to the baseline; last, who lost a seed."""
    values = {
        name: {seed: member.value for seed, member in found[task].items() if member.curves}
        for name, found in scores.items()
        if task in found and kept(found[task])
    }
    lead, first = measures_of(scores)[0], values.get(baseline, {})
    rows = []
    for name, own in values.items():
        common = [seed for seed in own if seed in first]
        pair = [[side[seed] for seed in common] for side in (own, first)]
        row = {"setting": name, **interval(list(own.values()), lead)}
        if lost := len(scores[name][task]) - len(own):
            row["diverged"] = lost
        if name != baseline and len(common) > 1:
            difference = interval(np.diff(pair[::-1], axis=0)[0])
            row |= {"difference": difference, "p": paired_t(*pair)}
        rows.append(row)
    return sorted(rows, key=lambda row: ("diverged" in row, -metric(lead).height(row["mean"])))


def _difference(row: Mapping[str, Any]) -> tuple:
    return (*row["difference"].values(), row["p"]) if "difference" in row else ("",) * 4
