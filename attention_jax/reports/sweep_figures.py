"""A sweep's figures, each setting in the same colour in all of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from attention_jax.evaluation.metrics import find, metric
from attention_jax.reports.figures import (
    LETTER,
    PALETTE,
    Figure,
    draw_bands,
    legend,
    log_scale,
    new_figure,
    save,
)
from attention_jax.reports.maps import WordMap, word_maps
from attention_jax.reports.names import short_keys
from attention_jax.reports.sweep import Answer, Setting, has_best, named

MOST_CURVES = 8  # settings a panel
MOST_ROWS = 64
MOST_MAPS = 6
TITLE = 32  # characters a line
PANEL = 3.2  # inches of intervals beside the names of settings, at least
NAMED = 16  # settings whose names have room beside a figure
SHAPES = "os^Dv"


def figures_of(answers: Sequence[Answer], folder: Path, palette: Mapping[str, str]) -> list[Figure]:
    """Every figure that the settings have something to show on; all but the first are of the first metric."""
    answer = answers[0]
    shown = [setting for setting, row in zip(answer.settings, answer.comparison.rows, strict=True) if row.value]
    drawn = [_intervals(answers, folder / "settings.png", palette)]
    numeric = {key: name for key, name in _names(answer).items() if len(_numbers(shown, key)) > 2}
    is_one_group = len(answer.groups) == 1
    if numeric and is_one_group:
        drawn.append(_slices(answer, numeric, folder / "slices.png", palette))
    if is_one_group and len({setting.cost.get("cost.flops") for setting in shown} - {None}) > 1:
        drawn.append(_pareto(answer, folder / "pareto.png", palette))
    if any(len(setting.curve.steps) > 1 for setting in shown):
        drawn.append(_curves(answer, folder / "curves.png", palette))
    if sum(setting.attention is not None for setting in shown) > 1:
        drawn.append(_maps(answer, folder / "attention.png"))
    return drawn


def _intervals(answers: Sequence[Answer], path: Path, palette: Mapping[str, str]) -> Figure:
    """A panel a metric and group: means with their intervals, the best on top, the baseline's mean as a dashed line."""
    panels = [(answer, group) for group in answers[0].groups for answer in answers]
    most = max(len(_indices(answer, group)) for answer, group in panels)
    columns = min(2, len(panels))
    longest = max(len(row.measured.setting) for row in answers[0].comparison.rows)
    width = max(7.0 if columns == 1 else 5.2, PANEL + LETTER * longest)
    figure, axes = new_figure(-(-len(panels) // columns), columns, width, max(2.0, 0.24 * min(most, MOST_ROWS) + 1.2))
    for axis, (answer, group) in zip(axes.flat, panels, strict=False):
        _draw_intervals(axis, answer, _indices(answer, group)[:MOST_ROWS], palette)
        axis.set_title(group, fontsize=9)
        axis.set_xlabel(answer.metric)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    first = "the best on top" if has_best(answers[0]) else "the least on top"
    cut = f"; of {most} settings the first {MOST_ROWS}" if most > MOST_ROWS else ""
    caption = f"Each setting with its 95% interval, {first}{cut}; the dashed line is at the baseline's mean."
    return save(figure, path, caption)


def _draw_intervals(axis, answer: Answer, indices: Sequence[int], palette: Mapping[str, str]) -> None:
    found = answer.comparison
    for height, index in enumerate(reversed(indices)):
        value, name = found.rows[index].value, found.rows[index].measured.setting
        if value is None:
            continue
        if value.low is not None:
            axis.plot([value.low, value.high], [height, height], color=palette[name], linewidth=1.5)
        axis.plot([value.mean], [height], _shape(palette, name), color=palette[name], markersize=4)
    for own in {found.baselines[index] for index in indices}:
        if own is not None and (value := found.rows[own].value) is not None:
            axis.axvline(value.mean, color="grey", linestyle="--", linewidth=0.8, zorder=0)
    labels = [found.rows[index].measured.setting for index in reversed(indices)]
    axis.set_yticks(range(len(indices)), labels, fontsize=7)
    axis.set_ylim(-0.7, len(indices) - 0.3)
    if metric(answer.metric).is_log:
        log_scale(axis, "x")
    axis.grid(alpha=0.3, axis="x")


def _slices(answer: Answer, keys: Mapping[str, str], path: Path, palette: Mapping[str, str]) -> Figure:
    """The metric against each number that was swept, a dot a setting, a line through the best at each value.

    Of settings that lost seeds, whose means are of luck, none is the best.
    """
    figure, axes = new_figure(1, len(keys), 3.2, 2.8, sharey=True)
    rows = zip(answer.settings, answer.comparison.rows, strict=True)
    shown = [(setting, row.measured, row.value.mean) for setting, row in rows if row.value]
    pick = max if metric(answer.metric).more_is_better else min
    for axis, (key, name) in zip(axes[0], keys.items(), strict=True):
        values = _numbers([setting for setting, _, _ in shown], key)
        pairs = [(one.overrides[key], mean, own) for one, own, mean in shown if key in one.overrides]
        whole = {value: [mean for x, mean, own in pairs if x == value and not own.lost] for value in values}
        best = {value: pick(means) for value, means in whole.items() if means}
        if has_best(answer):
            axis.plot([*best], [*best.values()], color="grey", linewidth=1)
        for x, mean, own in pairs:
            axis.plot([x], [mean], _shape(palette, own.setting), color=palette[own.setting], markersize=4)
        if min(values) > 0 and max(values) / min(values) > 8:
            log_scale(axis, "x")
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
    if metric(answer.metric).is_log:
        log_scale(axes[0, 0], "y")
    axes[0, 0].set_ylabel(answer.metric)
    line = "; the line joins the best at each, of settings that lost no seed" if has_best(answer) else ""
    return save(figure, path, f"{answer.metric} against each number that was swept{line}.")


def _pareto(answer: Answer, path: Path, palette: Mapping[str, str]) -> Figure:
    """Quality against training FLOPs, with the front that no setting that lost no seed beats in both."""
    figure, axes = new_figure(1, 1, 6.4, 4.2)
    axis, sign = axes[0, 0], 1 if metric(answer.metric).more_is_better else -1
    rows = enumerate(zip(answer.settings, answer.comparison.rows, strict=True))
    points = sorted(
        (setting.cost["cost.flops"], -sign * row.value.mean, index, row.value)
        for index, (setting, row) in rows
        if row.value and "cost.flops" in setting.cost
    )
    front, best = [], -np.inf
    for flops, negative, index, value in points:
        own = answer.comparison.rows[index].measured
        name, is_front = own.setting, has_best(answer) and not own.lost and -negative > best
        label = name if is_front or len(points) <= NAMED else None
        axis.vlines(flops, value.low, value.high, color=palette[name], linewidth=0.9, alpha=0.6)
        axis.plot([flops], [-sign * negative], _shape(palette, name), color=palette[name], markersize=5, label=label)
        if is_front:
            front.append((flops, -sign * negative))
            best = -negative
    if front:
        axis.plot(*zip(*front, strict=True), "--", color="grey", linewidth=1, zorder=0)
    if points[-1][0] > 10 * points[0][0]:
        axis.set_xscale("log")
    if metric(answer.metric).is_log:
        log_scale(axis, "y")
    axis.set_xlabel("training FLOPs of a seed")
    axis.set_ylabel(answer.metric)
    axis.grid(alpha=0.3)
    legend(figure, [axis])
    joined = "; the dashed front joins what nothing beats in both, of settings that lost no seed" if front else ""
    caption = f"{answer.metric} against training FLOPs, with 95% intervals where there are any{joined}."
    return save(figure, path, caption)


def _curves(answer: Answer, path: Path, palette: Mapping[str, str]) -> Figure:
    """Learning curves of each group's first settings, means over seeds in their intervals."""
    columns = min(2, len(answer.groups))
    size = (6.4, 4.0) if columns == 1 else (4.4, 3.0)
    figure, axes = new_figure(-(-len(answer.groups) // columns), columns, *size)
    what = next(setting.curve.name for setting in answer.settings if setting.curve.steps)
    for axis, group in zip(axes.flat, answer.groups, strict=False):
        curves = {index: answer.settings[index].curve for index in _indices(answer, group)[:MOST_CURVES]}
        names = {index: answer.comparison.rows[index].measured.setting for index in curves}
        shown = {names[index]: curve.line for index, curve in curves.items() if curve.steps and curve.name == what}
        draw_bands(axis, shown, palette)
        if (row := find(what)) is not None and row.is_log and shown:
            log_scale(axis, "y")
        axis.set_title(group, fontsize=9)
        axis.set_xlabel("step")
        axis.set_ylabel(what)
    for axis in axes.flat[len(answer.groups) :]:
        axis.set_axis_off()
    legend(figure, axes.flat[: len(answer.groups)])
    which = "; the best settings" if has_best(answer) else ""
    return save(figure, path, f"{what} by step, means over seeds in their 95% intervals{which}.")


def _maps(answer: Answer, path: Path) -> Figure:
    """The attention of the settings' first seeds on one held-out pair of sentences."""
    settings, order = answer.settings, answer.comparison.order
    indices = [index for index in order if settings[index].attention is not None][:MOST_MAPS]
    found: list[Any] = [settings[index].attention for index in indices]
    maps = [
        WordMap(one[""], list(one[".target"]), list(one[".source"]), fill(named(answer, index), TITLE))
        for index, one in zip(indices, found, strict=True)
    ]
    caption = "Attention on one held-out pair of sentences, teacher forced, by setting (first seed)."
    return word_maps(maps, path, caption, columns=min(3, len(maps)), xlabel="source", ylabel="reference")


def _shape(palette: Mapping[str, str], name: str) -> str:
    """A setting's marker: colours come again after ten, with another."""
    return SHAPES[[*palette].index(name) // len(PALETTE) % len(SHAPES)]


def _indices(answer: Answer, group: str) -> list[int]:
    """A group's settings that have a value, the best first."""
    rows = answer.comparison.rows
    return [index for index in answer.comparison.order if rows[index].measured.group == group and rows[index].value]


def _names(answer: Answer) -> dict[str, str]:
    return short_keys([setting.overrides for setting in answer.settings])


def _numbers(settings: Sequence[Setting], key: str) -> list[float]:
    """The numbers that a key was set to, in rising order."""
    found = [setting.overrides.get(key) for setting in settings]
    values = {value for value in found if not isinstance(value, list)}
    is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    return sorted(value for value in values if value is not None) if is_number else []
