"""What many settings say together: pivot tables of two factors, settings by groups, and each factor's main effect."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attention_jax.evaluation.comparison import Row
from attention_jax.evaluation.factors import Factor, best_of, factors_of, is_grid, pooled
from attention_jax.reports.names import short_keys
from attention_jax.reports.page import Table, show
from attention_jax.reports.sweep import Answer, estimate

AVERAGED = "Means over the settings of {}, of each seed that all of these have; intervals are over these seeds."
EFFECTS = (
    "Each level's mean over all settings that have it, of each seed that all of these have; intervals are over these "
    "seeds. Bold: the best level of a factor."
)
NO_GRID = "The settings are not every combination of {}, each once: there are no pivot tables and no main effects."


class Grid(NamedTuple):
    """The settings of a group, where they are a full grid: their indices in an answer, and their factors."""

    group: str
    indices: tuple[int, ...]
    factors: list[Factor]


def grid_tables(answers: Sequence[Answer], within: Sequence[str]) -> tuple[list[Table], list[str]]:
    """Settings by groups, pivots and main effects, where there are several groups or factors; what is not, as notes.

    `within` are the keys that make groups, of which none is a factor.
    """
    lead = answers[0]
    grids, notes = _grids(lead, within)
    names = short_keys([setting.overrides for setting in lead.settings])
    tables = [group_table(answer, within) for answer in answers] if len(lead.groups) > 1 else []
    for grid in grids:
        first, *others = [pivot(answer, lead, grid, *pair, names) for answer in answers for pair in _pairs(grid)]
        folded = [table._replace(folded=True) for table in others]
        tables += [first, main_effects(answers, grid, names), *folded]
    return tables, notes


def group_table(answer: Answer, within: Sequence[str]) -> Table:
    """A row a setting, a column a group; the best of each group in bold."""
    rows = answer.comparison.rows
    cells = {row.measured[:2]: index for index, row in enumerate(rows)}
    settings = list(dict.fromkeys(row.measured.setting for row in rows))
    indices = [[cells.get((setting, group)) for group in answer.groups] for setting in settings]
    shown = [[None if index is None else rows[index].value for index in line] for line in indices]
    best = {
        (height, 1 + column)
        for height, line in enumerate(indices)
        for column, index in enumerate(line)
        if index in answer.comparison.best
    }
    lines = [(setting, *map(estimate, line)) for setting, line in zip(settings, shown, strict=True)]
    keys = " and ".join(key.rpartition(".")[2] for key in within)
    return Table(f"{answer.metric} by {keys}", ("setting", *answer.groups), lines, best=best)


def pivot(answer: Answer, lead: Answer, grid: Grid, one: Factor, other: Factor, names: Mapping[str, str]) -> Table:
    """A row a level of one factor, a column a level of the other, cells the mean over the rest.

    What is best by the answer that leads is in bold.
    """
    shape = len(one.levels), len(other.levels)
    where = [{one: row, other: column} for row, column in itertools.product(*map(range, shape))]
    best = {(index // shape[1], 1 + index % shape[1]) for index in _best(lead, grid, where)}
    cells = [estimate(pooled(answer.metric, _rows(answer, grid, at))) for at in where]
    lines = [(_level(level), *cells[row * shape[1] : (row + 1) * shape[1]]) for row, level in enumerate(one.levels)]
    ours, theirs = names[one.key], names[other.key]
    rest = [names[factor.key] for factor in grid.factors if factor not in (one, other)]
    columns = (f"{ours} ↓  {theirs} →", *map(_level, other.levels))
    note = AVERAGED.format(f"every {' and '.join(rest)}") if rest else ""
    return Table(f"{answer.metric} by {ours} and {theirs}{_of(grid)}", columns, lines, note, best=best)


def main_effects(answers: Sequence[Answer], grid: Grid, names: Mapping[str, str]) -> Table:
    """A row a level of each factor, with the mean of every metric over the settings that have it.

    What is best by the first metric is in bold.
    """
    lines: list[tuple[Any, ...]] = []
    best: set[tuple[int, int]] = set()
    for factor in grid.factors:
        where = [{factor: level} for level in range(len(factor.levels))]
        columns = [[estimate(pooled(one.metric, _rows(one, grid, at))) for at in where] for one in answers]
        best |= {(len(lines) + level, 2 + n) for level in _best(answers[0], grid, where) for n in range(len(answers))}
        shown = [_level(level) for level in factor.levels]
        lines += zip([names[factor.key], *[""] * (len(shown) - 1)], shown, *columns, strict=True)
    metrics = [answer.metric for answer in answers]
    return Table(f"Main effects{_of(grid)}", ("factor", "level", *metrics), lines, EFFECTS, best=best)


def _grids(answer: Answer, within: Sequence[str]) -> tuple[list[Grid], list[str]]:
    """Each group's settings where they are a full grid of two factors or more; a note where they are none."""
    grids, notes = [], []
    for group in answer.groups:
        indices = [index for index, row in enumerate(answer.comparison.rows) if row.measured.group == group]
        overrides = [answer.settings[index].overrides for index in indices]
        factors = [factor for factor in factors_of(overrides) if factor.key not in within]
        if is_grid(factors, len(indices)) and len(factors) > 1:
            grids.append(Grid(group if len(answer.groups) > 1 else "", tuple(indices), factors))
        elif len(factors) > 1:
            notes.append(NO_GRID.format(", ".join(short_keys(overrides)[factor.key] for factor in factors)))
    return grids, list(dict.fromkeys(notes))


def _pairs(grid: Grid) -> Iterator[tuple[Factor, Factor]]:
    """Every two factors, that with more levels down the page."""
    for one, other in itertools.combinations(grid.factors, 2):
        yield (one, other) if len(one.levels) >= len(other.levels) else (other, one)


def _rows(answer: Answer, grid: Grid, at: Mapping[Factor, int]) -> list[Row]:
    """The settings that have some levels."""
    kept = (n for n in range(len(grid.indices)) if all(factor.level_of[n] == level for factor, level in at.items()))
    return [answer.comparison.rows[grid.indices[n]] for n in kept]


def _best(answer: Answer, grid: Grid, where: Sequence[Mapping[Factor, int]]) -> set[int]:
    """The best of some groups of settings, of those of which no setting lost a seed."""
    groups = [_rows(answer, grid, at) for at in where]
    whole = [None if any(row.measured.lost for row in rows) else pooled(answer.metric, rows) for rows in groups]
    return best_of(answer.metric, whole)


def _level(level: Any) -> str:
    return "as configured" if level is None else show(level)


def _of(grid: Grid) -> str:
    return f", {grid.group}" if grid.group else ""
