"""A sweep's table and figures, of settings that were compared elsewhere."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attention_jax.evaluation.comparison import Comparison, Interval
from attention_jax.evaluation.metrics import metric
from attention_jax.reports.figures import Figure, new_figure, save
from attention_jax.reports.maps import WordMap, word_maps
from attention_jax.reports.page import Table, show_number

MOST_CURVES = 8
MOST_MAPS = 6
NAMED = 16  # settings whose names have room beside a figure


class Curve(NamedTuple):
    """What was logged of a metric: means over seeds, and the ends of their intervals."""

    name: str
    steps: list[int]
    means: list[float]
    lows: list[float]
    highs: list[float]


class Setting(NamedTuple):
    """Cells that differ in seeds alone: what a reader is shown beside what was measured of them."""

    overrides: dict[str, Any]
    cost: dict[str, float]
    ends: list[str]  # of the cells without a value
    curve: Curve
    attention: dict[str, Any] | None
    cells: tuple[str, ...]  # their names


class Answer(NamedTuple):
    """Settings compared: the engine's rows, and of each in the same place what is shown beside it."""

    comparison: Comparison
    settings: list[Setting]
    notes: tuple[str, ...]  # what a reader must know

    @property
    def metric(self) -> str:
        return self.comparison.metric


def table_of(answer: Answer) -> Table:
    """The settings, best first; columns that say nothing anywhere are left out."""
    order, name = answer.comparison.order, answer.metric
    columns: dict[str, list[Any]] = {
        _short(key, _keys(answer)): [answer.settings[place].overrides.get(key, "") for place in order]
        for key in _keys(answer)
    }
    rows, settings = [answer.comparison.rows[place] for place in order], [answer.settings[place] for place in order]
    columns |= {"seeds": [len(row.measured.values) for row in rows]}
    columns |= _ends(("95% from", "to"), name, [row.value for row in rows])
    columns |= {"": [_mark(answer, place) for place in order]}
    columns |= _ends(("difference from", "difference to"), "difference", [row.difference for row in rows])
    columns |= {
        "p, t over seeds": [row.p_seeds for row in rows],
        "p, sign flips": [row.p_flips for row in rows],
        "p, sentences swapped": [row.p_sentences for row in rows],
        "p, sentences resampled": [row.p_bootstrap for row in rows],
        "p, Holm": [row.p_adjusted for row in rows],
        "parameters": [_whole(setting.cost.get("cost.parameters")) for setting in settings],
        "training FLOPs": [setting.cost.get("cost.flops") for setting in settings],
        "seconds": [setting.cost.get("cost.seconds") for setting in settings],
        "a step": [setting.cost.get("cost.step_seconds") for setting in settings],
        "tokens a second": [setting.cost.get("cost.tokens_per_second") for setting in settings],
        "not counted": [_not_counted(setting.ends) for setting in settings],
    }
    kept = {name: values for name, values in columns.items() if any(value not in (None, "") for value in values)}
    cells = [tuple("" if value is None else value for value in row) for row in zip(*kept.values(), strict=True)]
    return Table(f"{name}, means over seeds with 95% intervals", tuple(kept), cells, _caption(answer))


def names_of(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each setting's overrides: what it sets, with the keys unless each setting has one value alone."""
    keys = _differing(settings)
    if all(len({str(value) for key, value in one.items() if key in keys}) <= 1 for one in settings):
        return [next((str(one[key]) for key in keys if key in one), "") or "as configured" for one in settings]
    return [_with_keys(one, keys) for one in settings]


def short_keys(settings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The keys in which settings' overrides differ, each with as much of it as tells it from the others."""
    keys = _differing(settings)
    return {key: _short(key, keys) for key in keys}


def cells_table(answer: Answer, seeds: Mapping[str, Sequence[int]]) -> Table:
    """Each setting's cells: links to their folders, by their seeds."""
    from markupsafe import Markup

    def links(cells):
        named = [(name, ", ".join(map(str, seeds[name]))) for name in cells]
        return Markup(" ").join(Markup('<a href="cells/{}/">{}</a>').format(*one) for one in named)

    order = answer.comparison.order
    rows = [(_named(answer, place), links(answer.settings[place].cells)) for place in order]
    return Table("Cells", ("setting", "seeds"), rows, "cells.csv has every number of every seed.")


def names_of_task(values: Mapping[str, Any]) -> str:
    """What settings are compared within: the value of its one key, or each value with its key."""
    if len(values) == 1:
        return str(next(iter(values.values())))
    return _with_keys(values, list(values))


def write_tables(tables: Sequence[Table], folder: Path) -> None:
    """The first table as table.csv and table.tex, the next as table_2.csv, …; table.md has them all."""
    texts = []
    for number, table in enumerate(tables, start=1):
        name = "table" if number == 1 else f"table_{number}"
        (folder / f"{name}.tex").write_text(_drawn(table, "latex_booktabs"), encoding="utf-8")
        with open(folder / f"{name}.csv", "w", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([table.columns, *table.rows])
        title = f"{table.title}\n\n" if len(tables) > 1 else ""
        texts.append(title + _drawn(table, "github") + (f"\n{table.note}\n" if table.note else ""))
    (folder / "table.md").write_text("\n".join(texts), encoding="utf-8")


def _drawn(table: Table, kind: str) -> str:
    from tabulate import tabulate

    shown = [[show_number(cell) if isinstance(cell, (int, float)) else str(cell) for cell in row] for row in table.rows]
    return tabulate(shown, headers=list(table.columns), tablefmt=kind, disable_numparse=True) + "\n"


def figures_of(answer: Answer, folder: Path) -> list[Figure]:
    """Every figure that the settings have something to show on."""
    drawn = [_intervals(answer, folder / "settings.png")]
    shown = [setting for setting, row in zip(answer.settings, answer.comparison.rows, strict=True) if row.value]
    numeric = [key for key in _keys(answer) if len(_numbers(shown, key)) > 2]
    if numeric:
        drawn.append(_slices(answer, numeric, folder / "slices.png"))
    is_one_race = len({row.measured.task for row in answer.comparison.rows}) == 1
    if is_one_race and len({setting.cost.get("cost.flops") for setting in shown} - {None}) > 1:
        drawn.append(_pareto(answer, folder / "pareto.png"))
    if any(len(setting.curve.steps) > 1 for setting in shown):
        drawn.append(_curves(answer, folder / "curves.png"))
    if sum(setting.attention is not None for setting in shown) > 1:
        drawn.append(_maps(answer, folder / "attention.png"))
    return drawn


def _intervals(answer: Answer, path: Path) -> Figure:
    """Means with their intervals, the best on top."""
    found = answer.comparison
    order = [place for place in found.order if found.rows[place].value is not None][: 4 * NAMED][::-1]
    figure, axes = new_figure(1, 1, 7.0, max(2.0, 0.24 * len(order) + 1.2))
    axis = axes[0, 0]
    for height, place in enumerate(order):
        value: Any = found.rows[place].value
        colour = "tab:orange" if place == found.baselines[place] else "tab:blue"
        if value.low is not None:
            axis.plot([value.low, value.high], [height, height], color=colour, linewidth=1.5)
        axis.plot([value.mean], [height], "o", color=colour, markersize=4)
    axis.set_yticks(range(len(order)), [_named(answer, place) for place in order], fontsize=7)
    axis.set_xlabel(answer.metric)
    axis.grid(alpha=0.3, axis="x")
    return save(figure, path, f"{answer.metric} of each setting with its 95% interval; the baseline in orange.")


def _slices(answer: Answer, keys: Sequence[str], path: Path) -> Figure:
    """The metric against each number that was swept, a dot a setting, a line through the best at each value."""
    figure, axes = new_figure(1, len(keys), 3.2, 2.8, sharey=True)
    rows = zip(answer.settings, answer.comparison.rows, strict=True)
    shown = [(setting, row.value.mean) for setting, row in rows if row.value]
    for axis, key in zip(axes[0], keys, strict=True):
        values = _numbers([setting for setting, _ in shown], key)
        pairs = [(setting.overrides[key], mean) for setting, mean in shown if key in setting.overrides]
        axis.plot(*zip(*pairs, strict=True), "o", color="tab:blue", alpha=0.5, markersize=4)
        pick = max if metric(answer.metric).more_is_better else min
        axis.plot(values, [pick(mean for x, mean in pairs if x == value) for value in values], color="tab:blue")
        if min(values) > 0 and max(values) / min(values) > 8:
            axis.set_xscale("log")
        axis.set_xlabel(_short(key, _keys(answer)))
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel(answer.metric)
    return save(figure, path, f"{answer.metric} against each number that was swept; the line joins the best at each.")


def _pareto(answer: Answer, path: Path) -> Figure:
    """Quality against training FLOPs, with the front that no setting beats in both."""
    figure, axes = new_figure(1, 1, 6.4, 3.8)
    axis, sign = axes[0, 0], 1 if metric(answer.metric).more_is_better else -1
    rows = enumerate(zip(answer.settings, answer.comparison.rows, strict=True))
    points = sorted(
        (setting.cost["cost.flops"], -sign * row.value.mean, place)
        for place, (setting, row) in rows
        if row.value and "cost.flops" in setting.cost
    )
    front, best = [], -np.inf
    for number, (flops, negative, place) in enumerate(points):
        shape = "os^Dv"[number // 10 % 5]  # colours come again after ten
        is_front = -negative > best
        label = _named(answer, place) if is_front or len(points) <= NAMED else None
        axis.plot([flops], [-sign * negative], shape, markersize=5, label=label)
        if is_front:
            front.append((flops, -sign * negative))
            best = -negative
    axis.plot(*zip(*front, strict=True), "--", color="grey", linewidth=1)
    if points[-1][0] > 10 * points[0][0]:
        axis.set_xscale("log")
    axis.set_xlabel("training FLOPs of a seed")
    axis.set_ylabel(answer.metric)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=7)
    return save(
        figure,
        path,
        f"{answer.metric} against training FLOPs; the dashed front joins what nothing beats in both.",
    )


def _curves(answer: Answer, path: Path) -> Figure:
    """Learning curves of the first settings, means over seeds in their intervals."""
    figure, axes = new_figure(1, 1, 6.4, 3.8)
    axis, places = axes[0, 0], answer.comparison.order[:MOST_CURVES]
    curves = {place: answer.settings[place].curve for place in places}
    for place, curve in curves.items():
        (line,) = axis.plot(curve.steps, curve.means, label=_named(answer, place), linewidth=1.2)
        axis.fill_between(curve.steps, curve.lows, curve.highs, alpha=0.2, color=line.get_color(), linewidth=0)
    name = curves[places[0]].name
    axis.set_xlabel("step")
    axis.set_ylabel(name)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, fontsize=7)
    return save(figure, path, f"{name} by step, means over seeds in their 95% intervals; the best settings.")


def _maps(answer: Answer, path: Path) -> Figure:
    """The attention of the settings' first seeds on one held-out pair of sentences."""
    settings, order = answer.settings, answer.comparison.order
    places = [place for place in order if settings[place].attention is not None][:MOST_MAPS]
    found: list[Any] = [settings[place].attention for place in places]
    maps = [
        WordMap(one[""], list(one[".target"]), list(one[".source"]), _named(answer, place))
        for place, one in zip(places, found, strict=True)
    ]
    caption = "Attention on one held-out pair of sentences, teacher forced, by setting (first seed)."
    return word_maps(maps, path, caption, columns=min(3, len(maps)), xlabel="source", ylabel="reference")


def _keys(answer: Answer) -> list[str]:
    """The keys that differ between settings."""
    return _differing([setting.overrides for setting in answer.settings])


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that differ between overrides."""
    keys = list(dict.fromkeys(key for overrides in settings for key in overrides))
    return [key for key in keys if len({repr(overrides.get(key)) for overrides in settings}) > 1] or keys[:1]


def _short(key: str, keys: Sequence[str]) -> str:
    """A key's last part, or as much of it as tells it from the others."""
    parts = key.removesuffix(".name").split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[-count:])
        if sum(other.endswith(f".{name}") or other == name for other in keys) == 1:
            return name
    return key


def _named(answer: Answer, place: int) -> str:
    """A setting's name, with its task where there are several."""
    rows = answer.comparison.rows
    setting, task = rows[place].measured[:2]
    return f"{setting}, {task}" if len({row.measured.task for row in rows}) > 1 else setting


def _with_keys(overrides: Mapping[str, Any], keys: Sequence[str]) -> str:
    values = [(_short(key, keys), overrides[key]) for key in keys if key in overrides]
    return ", ".join(f"{name} {show_number(v) if isinstance(v, (int, float)) else v}" for name, v in values)


def _numbers(settings: Sequence[Setting], key: str) -> list[float]:
    """The numbers that a key was set to, in rising order."""
    found = [setting.overrides.get(key) for setting in settings]
    values = {value for value in found if not isinstance(value, list)}
    is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    return sorted(value for value in values if value is not None) if is_number else []


def _mark(answer: Answer, place: int) -> str:
    marks = {"best": place in answer.comparison.best, "baseline": place == answer.comparison.baselines[place]}
    return ", ".join(name for name, holds in marks.items() if holds)


def _ends(titles: tuple[str, str], name: str, found: Sequence[Interval | None]) -> dict[str, list[float | None]]:
    """Columns of means and of their intervals' ends."""
    parts = zip((name, *titles), Interval._fields, strict=True)
    return {title: [None if one is None else getattr(one, part) for one in found] for title, part in parts}


def _not_counted(ends: Sequence[str]) -> str:
    return ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


BY_SENTENCES = (
    "Intervals are over seeds and sentences, those of differences too. p-values against the baseline: over sentences "
    "by approximate randomization (swapped) and paired bootstrap (resampled, sacreBLEU's), which take the trained "
    "models as they are; over seeds by paired t and exact sign flips. Holm's correction is of the swapped ones."
)
BY_SEEDS = (
    "Intervals are over seeds, those of differences over the seeds that both have. p-values against the baseline: "
    "paired t and exact sign flips over seeds; Holm's correction is of the former."
)


def _caption(answer: Answer) -> str:
    rows = answer.comparison.rows
    if any(row.p_sentences is not None for row in rows):
        return " ".join((BY_SENTENCES, *answer.notes))
    if any(row.p_seeds is not None for row in rows):
        return " ".join((BY_SEEDS, *answer.notes))
    return " ".join(answer.notes)
