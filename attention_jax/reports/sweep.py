"""A sweep's table and figures, of settings that were compared elsewhere."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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
    """Cells that differ in seeds alone."""

    overrides: dict[str, Any]
    values: dict[int, float]  # seed → metric
    lacking: int  # seeds without a value
    scores: dict[int, np.ndarray]  # seed → BLEU's statistics of every sentence
    references: str  # which sentences these are
    cost: dict[str, float]
    ends: list[str]  # of the cells without a value
    curve: Curve
    attention: dict[str, Any] | None


class Row(NamedTuple):
    """A setting's place in the table; None where there is nothing to say."""

    setting: Setting
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None  # to the baseline
    p_seeds: float | None = None
    p_flips: float | None = None
    p_sentences: float | None = None
    p_bootstrap: float | None = None
    p_adjusted: float | None = None


class Answer(NamedTuple):
    """All rows, their order and the best of them, and each one's baseline: one for all, unless there are groups."""

    metric: str
    more_is_better: bool | None
    rows: list[Row]
    order: tuple[int, ...]  # places of the rows, the best first
    best: frozenset[int]
    baselines: tuple[int, ...]
    notes: tuple[str, ...]  # what a reader must know


def table_of(answer: Answer) -> Table:
    """The settings, best first; columns that say nothing anywhere are left out."""
    order = answer.order
    columns: dict[str, list[Any]] = {
        _short(key, _keys(answer)): [answer.rows[place].setting.overrides.get(key, "") for place in order]
        for key in _keys(answer)
    }
    rows = [answer.rows[place] for place in order]
    columns |= {
        "seeds": [len(row.setting.values) for row in rows],
        answer.metric: [row.mean for row in rows],
        "95% from": [row.low for row in rows],
        "to": [row.high for row in rows],
        "": [_mark(answer, place) for place in order],
        "difference": [row.difference for row in rows],
        "p, t over seeds": [row.p_seeds for row in rows],
        "p, sign flips": [row.p_flips for row in rows],
        "p, sentences swapped": [row.p_sentences for row in rows],
        "p, sentences resampled": [row.p_bootstrap for row in rows],
        "p, Holm": [row.p_adjusted for row in rows],
        "parameters": [_whole(row.setting.cost.get("cost.parameters")) for row in rows],
        "training FLOPs": [row.setting.cost.get("cost.flops") for row in rows],
        "seconds": [row.setting.cost.get("cost.seconds") for row in rows],
        "a step": [row.setting.cost.get("cost.step_seconds") for row in rows],
        "tokens a second": [row.setting.cost.get("cost.tokens_per_second") for row in rows],
        "not counted": [_ends(row.setting.ends) for row in rows],
    }
    kept = {name: values for name, values in columns.items() if any(value not in (None, "") for value in values)}
    cells = [tuple("" if value is None else value for value in row) for row in zip(*kept.values(), strict=True)]
    return Table(f"{answer.metric}, means over seeds with 95% intervals", tuple(kept), cells, _caption(answer))


def order_of(answer: Answer) -> list[dict[str, Any]]:
    """The settings, best first, with mean, interval, and difference and p-values where there are any."""
    names = ("mean", "low", "high", "difference", "p_seeds", "p_flips", "p_sentences", "p_bootstrap", "p_adjusted")
    rows = [(place, answer.rows[place]) for place in answer.order]
    return [
        {"setting": _name(answer, place), "seeds": len(row.setting.values)}
        | {name: value for name in names if (value := getattr(row, name)) is not None}
        for place, row in rows
    ]


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
    rows = [row for row in answer.rows if row.mean is not None]
    numeric = [key for key in _keys(answer) if len(_numbers(rows, key)) > 2]
    if numeric:
        drawn.append(_slices(answer, numeric, folder / "slices.png"))
    is_one_race = len(set(answer.baselines)) == 1
    if is_one_race and len({row.setting.cost.get("cost.flops") for row in rows} - {None}) > 1:
        drawn.append(_pareto(answer, folder / "pareto.png"))
    if any(len(row.setting.curve.steps) > 1 for row in rows):
        drawn.append(_curves(answer, folder / "curves.png"))
    if sum(row.setting.attention is not None for row in rows) > 1:
        drawn.append(_maps(answer, folder / "attention.png"))
    return drawn


def _intervals(answer: Answer, path: Path) -> Figure:
    """Means with their intervals, the best on top."""
    order = [place for place in answer.order if answer.rows[place].mean is not None][: 4 * NAMED][::-1]
    figure, axes = new_figure(1, 1, 7.0, max(2.0, 0.24 * len(order) + 1.2))
    axis = axes[0, 0]
    for height, place in enumerate(order):
        row = answer.rows[place]
        colour = "tab:orange" if place == answer.baselines[place] else "tab:blue"
        if row.low is not None:
            axis.plot([row.low, row.high], [height, height], color=colour, linewidth=1.5)
        axis.plot([row.mean], [height], "o", color=colour, markersize=4)
    axis.set_yticks(range(len(order)), [_name(answer, place) for place in order], fontsize=7)
    axis.set_xlabel(answer.metric)
    axis.grid(alpha=0.3, axis="x")
    return save(figure, path, f"{answer.metric} of each setting with its 95% interval; the baseline in orange.")


def _slices(answer: Answer, keys: Sequence[str], path: Path) -> Figure:
    """The metric against each number that was swept, a dot a setting, a line through the best at each value."""
    figure, axes = new_figure(1, len(keys), 3.2, 2.8, sharey=True)
    rows = [row for row in answer.rows if row.mean is not None]
    for axis, key in zip(axes[0], keys, strict=True):
        values = _numbers(rows, key)
        pairs = [(row.setting.overrides[key], float(row.mean or 0)) for row in rows if key in row.setting.overrides]
        axis.plot(*zip(*pairs, strict=True), "o", color="tab:blue", alpha=0.5, markersize=4)
        pick = max if answer.more_is_better else min
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
    axis, sign = axes[0, 0], 1 if answer.more_is_better else -1
    known = [p for p, row in enumerate(answer.rows) if row.mean is not None and "cost.flops" in row.setting.cost]
    points = sorted(
        (answer.rows[p].setting.cost["cost.flops"], -sign * float(answer.rows[p].mean or 0), p) for p in known
    )
    front, best = [], -np.inf
    for number, (flops, negative, place) in enumerate(points):
        shape = "os^Dv"[number // 10 % 5]  # colours come again after ten
        is_front = -negative > best
        label = _name(answer, place) if is_front or len(points) <= NAMED else None
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
        figure, path, f"{answer.metric} against training FLOPs; the dashed front joins what nothing beats in both."
    )


def _curves(answer: Answer, path: Path) -> Figure:
    """Learning curves of the first settings, means over seeds in their intervals."""
    figure, axes = new_figure(1, 1, 6.4, 3.8)
    axis, places = axes[0, 0], answer.order[:MOST_CURVES]
    curves = {place: answer.rows[place].setting.curve for place in places}
    for place, curve in curves.items():
        (line,) = axis.plot(curve.steps, curve.means, label=_name(answer, place), linewidth=1.2)
        axis.fill_between(curve.steps, curve.lows, curve.highs, alpha=0.2, color=line.get_color(), linewidth=0)
    name = curves[places[0]].name
    axis.set_xlabel("step")
    axis.set_ylabel(name)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, fontsize=7)
    return save(figure, path, f"{name} by step, means over seeds in their 95% intervals; the best settings.")


def _maps(answer: Answer, path: Path) -> Figure:
    """The attention of the settings' first seeds on one held-out pair of sentences."""
    places = [place for place in answer.order if answer.rows[place].setting.attention is not None][:MOST_MAPS]
    found: list[Any] = [answer.rows[place].setting.attention for place in places]
    maps = [
        WordMap(one[""], list(one[".target"]), list(one[".source"]), _name(answer, place))
        for place, one in zip(places, found, strict=True)
    ]
    caption = "Attention on one held-out pair of sentences, teacher forced, by setting (first seed)."
    return word_maps(maps, path, caption, columns=min(3, len(maps)), xlabel="source", ylabel="reference")


def _keys(answer: Answer) -> list[str]:
    """The keys that differ between settings."""
    keys = list(dict.fromkeys(key for row in answer.rows for key in row.setting.overrides))
    return [key for key in keys if len({repr(row.setting.overrides.get(key)) for row in answer.rows}) > 1] or keys[:1]


def _short(key: str, keys: Sequence[str]) -> str:
    """A key's last part, or as much of it as tells it from the others."""
    parts = key.removesuffix(".name").split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[-count:])
        if sum(other.endswith(f".{name}") or other == name for other in keys) == 1:
            return name
    return key


def _name(answer: Answer, place: int) -> str:
    overrides, keys = answer.rows[place].setting.overrides, _keys(answer)
    values = [(_short(key, keys), overrides[key]) for key in keys if key in overrides]
    if len(values) == 1:
        return str(values[0][1]) or repr("")
    return ", ".join(f"{name} {show_number(v) if isinstance(v, (int, float)) else v}" for name, v in values)


def _numbers(rows: Sequence[Row], key: str) -> list[float]:
    """The numbers that a key was set to, in rising order."""
    values = {row.setting.overrides.get(key) for row in rows if not isinstance(row.setting.overrides.get(key), list)}
    is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    return sorted(value for value in values if value is not None) if is_number else []


def _mark(answer: Answer, place: int) -> str:
    marks = {"best": place in answer.best, "baseline": place == answer.baselines[place]}
    return ", ".join(name for name, holds in marks.items() if holds)


def _ends(ends: Sequence[str]) -> str:
    return ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _caption(answer: Answer) -> str:
    has: Mapping[str, bool] = {
        "sentences": any(row.p_sentences is not None for row in answer.rows),
        "seeds": any(row.p_seeds is not None for row in answer.rows),
    }
    parts = []
    if has["sentences"]:
        parts.append(
            "Intervals are over seeds and sentences. p-values against the baseline: over sentences by approximate "
            "randomization (swapped) and paired bootstrap (resampled, sacreBLEU's), which take the trained models as "
            "they are; over seeds by paired t and exact sign flips. Holm's correction is of the swapped ones."
        )
    elif has["seeds"]:
        parts.append(
            "Intervals are over seeds. p-values against the baseline: paired t and exact sign flips over seeds; Holm's "
            "correction is of the former."
        )
    return " ".join((*parts, *answer.notes))
