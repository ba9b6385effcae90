"""What searches cost, without training: they are played over a finished sweep, whose cells are what they would train.

A sweep over a grid of numbers is a table: each setting's value, and how it came there, of every seed. A search asks for
a setting, is given the nearest of the grid, and pays for as much of its training as it is told. Its regret is how far
what it chose lies from the best of the table, over the seeds that it was not told of.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attention_jax.errors import UserError
from attention_jax.evaluation.metrics import metric
from attention_jax.sweeps.folder import read_result, stored_config
from attention_jax.sweeps.space import Overrides, Uniform
from attention_jax.sweeps.study import PRUNERS, SAMPLERS, Study, require_known

WIDE = 8  # a grid whose ends differ by more is on the logarithm


class Table(NamedTuple):
    """A finished sweep over a grid: at every point of it a setting's values, by seed and evaluation; the last counts.

    More of `heights` is better.
    """

    metric: str
    grid: dict[str, list[float]]  # by key, in rising order
    heights: Float[np.ndarray, "settings seeds evaluations"]  # settings as the product of the grid, last key fastest

    @property
    def space(self) -> dict[str, Uniform]:
        """What a search over the table draws from."""
        is_wide = {key: low > 0 and high / low > WIDE for key, (low, *_, high) in self.grid.items()}
        return {key: Uniform(values[0], values[-1], log=is_wide[key]) for key, values in self.grid.items()}

    def nearest(self, overrides: Overrides) -> int:
        """The setting nearest to what was asked for."""
        place = 0
        for key, draw in self.space.items():
            scale = np.log if draw.log else np.asarray
            distances = np.abs(scale(self.grid[key]) - scale(overrides[key]))
            place = place * len(distances) + int(np.argmin(distances))
        return place


class Told(NamedTuple):
    """After a batch: what was paid so far, in whole trainings, and the setting that is the best of those told."""

    cost: float
    setting: int


def read_table(path: Path) -> Table:
    """The table of a sweep's folder, by `config.train.best_by`. Raises UserError where it is no finished grid."""
    config, result = stored_config(path), read_result(path)
    if config is None or result is None or "cells" not in result:
        raise UserError(f"config.table={str(path)!r}: holds no finished sweep.")
    cells, by = result["cells"], config.train.best_by
    if any(cell["status"] != "finished" for cell in cells):
        raise UserError(f"config.table={str(path)!r}: a cell did not finish: a table needs them all.")
    grid = {key: sorted({cell["overrides"][key] for cell in cells}) for key in cells[0]["overrides"]}
    if any(len(values) < 2 or not isinstance(values[0], (int, float)) for values in grid.values()):
        raise UserError(f"config.table={str(path)!r}: its settings are no grid of numbers.")
    sign = 1 if metric(by).more_is_better else -1
    curves = {
        (*(cell["overrides"][key] for key in grid), cell["seed"]): [sign * value for _, value in cell["learning"]]
        for cell in cells
    }
    seeds = sorted({cell["seed"] for cell in cells})
    points = list(itertools.product(*grid.values()))
    if len(seeds) < 2 or any((*point, seed) not in curves for point in points for seed in seeds):
        raise UserError(f"config.table={str(path)!r}: needs every point of its grid with the same two seeds or more.")
    if len({len(curve) for curve in curves.values()}) > 1:
        raise UserError(f"config.table={str(path)!r}: its cells were not evaluated equally often.")
    return Table(by, grid, np.array([[curves[*point, seed] for seed in seeds] for point in points]))


def play(table: Table, method: str, seed: int, budget: float, batch: int) -> list[Told]:
    """A search by SAMPLER or SAMPLER+PRUNER for a budget of whole trainings; it is told of one seed of the table."""
    sampler, _, pruner = method.partition("+")
    heights = table.heights[:, seed % table.heights.shape[1]]
    study = Study(table.space, sampler, pruner or "none", seed, more_is_better=True)
    told: list[Told] = []
    evaluations, best = 0, (-math.inf, -1)
    for first in itertools.count(step=batch):
        settings = [table.nearest(overrides) for overrides in study.ask(batch)]
        paid, ended = _batch(study, first, heights[settings], pruner)
        for setting, value in zip(settings, ended, strict=True):
            best = max(best, (-math.inf if value is None else value, setting))
        evaluations += paid
        cost = evaluations / heights.shape[1]  # divided once: a sum of fractions may exceed a budget that it fits
        if cost > budget:
            return told
        if best[1] >= 0:
            told.append(Told(cost, best[1]))
    raise AssertionError("a search pays for every batch")


def _batch(
    study: Study, first: int, heights: Float[np.ndarray, "trials evaluations"], pruner: str
) -> tuple[int, list[float | None]]:
    """How many evaluations a batch pays, and what each trial came to, None where it was dropped; the study is told."""
    evaluations = heights.shape[1]
    alive, paid = list(range(len(heights))), 0
    for step in range(1, evaluations + 1):
        paid += len(alive)
        if pruner and step < evaluations:
            alive = [trial for trial in alive if not study.prunes(first + trial, step, heights[trial, step - 1])]
    ended = [float(heights[trial, -1]) if trial in alive else None for trial in range(len(heights))]
    for trial, value in enumerate(ended):
        study.tell(first + trial, value)
    return paid, ended


def regrets(table: Table, told: Sequence[Told], seed: int, budgets: Sequence[float]) -> list[float]:
    """How far the choice at each budget lies from the best of the table, over the seeds that it was not told of."""
    seeds = table.heights.shape[1]
    kept = [other for other in range(seeds) if other != seed % seeds]
    others: list[float] = table.heights[:, kept, -1].mean(axis=1).tolist()
    choices = [[one.setting for one in told if one.cost <= budget] for budget in budgets]
    return [max(others) - (others[chosen[-1]] if chosen else min(others)) for chosen in choices]


def require_methods(methods: Sequence[str]) -> None:
    """Raise UserError for a name that is no SAMPLER or SAMPLER+PRUNER."""
    for name in methods:
        sampler, _, pruner = name.partition("+")
        if sampler not in SAMPLERS or (pruner or "none") not in PRUNERS:
            known = f"{', '.join(SAMPLERS)}, alone or as tpe+{', tpe+'.join(list(PRUNERS)[1:])}"
            raise UserError(f"config.methods: {name!r} is no method: {known}.")
        require_known(sampler, pruner or "none")


def played(config: Mapping[str, Any], table: Table, seed: int) -> dict[str, Any]:
    """The regret of every method at every budget, in one repeat."""
    budgets = config["budgets"]
    found = {name: play(table, name, seed, max(budgets), config["batch"]) for name in config["methods"]}
    return {
        "regret": {
            name: dict(zip(map(str, budgets), regrets(table, told, seed, budgets), strict=True))
            for name, told in found.items()
        }
    }
