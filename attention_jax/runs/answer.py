"""A sweep's answer: its cells read, its settings compared, and tables, figures and a page written. Nothing is run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention_jax.errors import UserError
from attention_jax.evaluation.bleu import bleu_of_statistics
from attention_jax.evaluation.significance import (
    RESAMPLES,
    approximate_randomization,
    holm,
    paired_bootstrap,
    paired_t,
    seeds_needed,
    sign_flip,
)
from attention_jax.evaluation.statistics import mean_interval, resampled_sums, two_level_interval
from attention_jax.reports.page import render
from attention_jax.reports.sweep import Answer, Curve, Row, Setting, figures_of, order_of, table_of, write_tables
from attention_jax.runs.experiment import FinishedCell, finished
from attention_jax.runs.folder import Run, to_json, write_result, write_whole
from attention_jax.runs.sweeps import Sweep, failures, read_result
from attention_jax.sweeps.cells import flatten, place_of

LEVEL = 0.05
LOWER = ("loss", "perplexity", "error", "mse", "seconds", "flops")  # metrics of which less is better
ENDS = {"diverged": "diverged", "dropped": "dropped at a rung"}
COSTS = ("cost.parameters", "cost.flops", "cost.seconds", "cost.tokens_per_second")


def write_answer(sweep: Sweep) -> Path:
    """Read every cell, and write table.md, .csv and .tex, result.json, figures/ and report.html; the page's path.

    Raises UserError where no cell is done, or none has the metric.
    """
    answer = compare(sweep)
    folder = sweep.path / "figures"
    folder.mkdir(exist_ok=True)
    table = table_of(answer)
    write_tables(table, sweep.path)
    tables, figures = [table], figures_of(answer, folder)
    result: dict[str, Any] = {"orders": {answer.metric: order_of(answer)}}
    if sweep.experiment.conclude is not None:
        found = sweep.experiment.conclude(sweep.config, _finished_cells(sweep), folder)
        tables, figures = [*found.tables, *tables], [*found.figures, *figures]
        result = {**found.result, "orders": {**found.result["orders"], **result["orders"]}}
    status = "finished" if all(map(sweep.is_done, sweep.plan.cells)) else "unfinished"
    write_result(sweep.path, {**finished(sweep.config, result), "status": status})
    page = render(f"{sweep.config.experiment}: {sweep.path.name}", tables, figures, to_json(sweep.config))
    write_whole(sweep.path / "report.html", page)
    return sweep.path / "report.html"


def compare(sweep: Sweep) -> Answer:
    """Every setting with its mean, interval and tests against the baseline."""
    metric, lower = _metric(sweep)
    settings = _settings(sweep, metric)
    if not any(setting.values for setting in settings):
        raise UserError(f"{sweep.path}: no finished cell has {metric!r}: name another with --config.sweep.metric=….")
    baselines = _baselines(sweep, settings)
    rows = [
        _row(setting, settings[own], place == own)
        for place, (setting, own) in enumerate(zip(settings, baselines, strict=True))
    ]
    compared = [row for place, row in enumerate(rows) if place != baselines[place] and row.mean is not None]
    has_sentences = all(row.p_sentences is not None for row in compared)
    if not has_sentences:
        rows = [row._replace(p_sentences=None, p_bootstrap=None) for row in rows]
    chosen = [row.p_sentences if has_sentences else row.p_seeds for row in rows]
    adjusted = holm([float("nan") if p is None else p for p in chosen])
    rows = [row._replace(p_adjusted=None if p != p else p) for row, p in zip(rows, adjusted, strict=True)]
    return Answer(metric, lower, rows, _best(rows, baselines, lower), tuple(baselines), _warning(settings, rows))


def _best(rows: Sequence[Row], baselines: Sequence[int], lower: bool) -> frozenset[int]:
    """The best setting of those that share a baseline, wherever one has a value."""
    heights = [None if row.mean is None else row.mean * (-1 if lower else 1) for row in rows]
    best: dict[int, tuple[float, int]] = {}
    for place, (height, own) in enumerate(zip(heights, baselines, strict=True)):
        if height is not None and (own not in best or height > best[own][0]):
            best[own] = (height, place)
    return frozenset(place for _, place in best.values())


def _baselines(sweep: Sweep, settings: Sequence[Setting]) -> list[int]:
    """The place of each setting's baseline: of those that agree with it on `config.sweep.within`."""
    asked = sweep.config.sweep
    groups: dict[str, list[int]] = {}
    for place, setting in enumerate(settings):
        groups.setdefault(repr([setting.overrides.get(key) for key in asked.within]), []).append(place)
    found = [0] * len(settings)
    for places in groups.values():
        own = places[place_of([settings[place].overrides for place in places], asked.baseline)]
        for place in places:
            found[place] = own
    return found


def _finished_cells(sweep: Sweep) -> list[FinishedCell]:
    read = ((name, read_result(sweep.cell(name))) for name in sweep.plan.cells)
    return [
        FinishedCell(sweep.config_of(name), sweep.cell(name), result, dict(sweep.plan.cells[name].overrides))
        for name, result in read
        if result is not None and result["status"] not in ENDS
    ]


def _settings(sweep: Sweep, metric: str) -> list[Setting]:
    """The cells that differ in seeds alone, together, in the plan's order."""
    groups: dict[str, list[str]] = {}
    for name in sweep.plan.cells:
        groups.setdefault(sweep.setting_of(name), []).append(name)
    return [_setting(sweep, metric, names) for names in groups.values()]


def _setting(sweep: Sweep, metric: str, names: Sequence[str]) -> Setting:
    values: dict[int, float] = {}
    costs: list[dict[str, float]] = []
    scores: dict[int, np.ndarray] = {}
    references: set[str] = set()
    ends: list[str] = []
    finished: list[str] = []
    failed = failures(sweep)
    for name in names:
        result = read_result(sweep.cell(name))
        if result is None or result["status"] in ENDS:
            ends.append(ENDS[result["status"]] if result else "failed" if name in failed else "missing")
            continue
        finished.append(name)
        members = result.get("members") or [result]
        for place, (seed, member) in enumerate(zip(result["seeds"], members, strict=False)):
            value = flatten(member).get(metric)
            if value is None:
                ends.append("without a value")
                continue
            values[seed] = value
            kept, of = _sentence_scores(sweep.cell(name), metric, place)
            scores |= {} if kept is None else {seed: kept}
            references.add(of)
        costs.append({key: value for key, value in flatten(result).items() if key in COSTS and value is not None})
    overrides = {key: value for key, value in sweep.plan.cells[names[0]].overrides.items() if key != "seeds"}
    cost = {key: float(np.mean([c[key] for c in costs])) for key in COSTS if costs and all(key in c for c in costs)}
    lines = [line for name in finished for line in Run(sweep.cell(name), 0.0).metrics()]
    attention = _attention(sweep.cell(finished[0])) if finished else None
    return Setting(
        overrides,
        values,
        scores if len(scores) == len(values) else {},
        "".join(references),
        cost,
        ends,
        learning_curve(lines, metric),
        attention,
    )


def _sentence_scores(cell: Path, metric: str, place: int) -> tuple[np.ndarray | None, str]:
    """A seed's statistics of every sentence, and what tells these sentences from others."""
    path, split = cell / "scores.npz", metric.partition(".")[0]
    if not path.exists():
        return None, ""
    with np.load(path) as found:
        return (found[metric][place], str(found[f"{split}.references"])) if metric in found else (None, "")


def learning_curve(lines: Sequence[Mapping[str, Any]], metric: str) -> Curve:
    """The metric, or the training loss where that is not logged, at the steps at which every seed has it."""
    logged = metric if any(metric in line for line in lines) else "train.loss"
    found: dict[int, dict[int, float]] = {}
    for line in lines:
        if line.get(logged) is not None:
            found.setdefault(line["step"], {})[line["seed"]] = line[logged]
    most = max(map(len, found.values()), default=0)
    steps = sorted(step for step, values in found.items() if len(values) == most)
    ends = [mean_interval([*found[step].values()]) for step in steps]
    means, lows, highs = (list(column) for column in zip(*ends, strict=True)) if ends else ([], [], [])
    return Curve(logged, steps, means, lows, highs)


def _attention(cell: Path) -> dict[str, Any] | None:
    path = cell / "scores.npz"
    if not path.exists():
        return None
    with np.load(path) as found:
        if "attention.0" not in found:
            return None
        return {part: found[f"attention.0{part}"] for part in ("", ".source", ".target")}


def _row(setting: Setting, baseline: Setting, is_baseline: bool) -> Row:
    values = list(setting.values.values())
    if not values:
        return Row(setting)
    common = [] if is_baseline else [seed for seed in setting.values if seed in baseline.values]
    pair = [[side.values[seed] for seed in common] for side in (setting, baseline)]
    has_pairs = len(common) > 1
    rows = None
    if setting.scores and setting.references == baseline.references and common:
        rows = [np.concatenate([side.scores[seed] for seed in common], axis=-1) for side in (setting, baseline)]
    return Row(
        setting,
        *_interval(setting),
        difference=float(np.mean(pair[0]) - np.mean(pair[1])) if common else None,
        p_seeds=_known(paired_t(*pair)) if has_pairs else None,
        p_flips=sign_flip(*pair) if has_pairs else None,
        p_sentences=approximate_randomization(_mean_bleu, *rows) if rows else None,
        p_bootstrap=paired_bootstrap(_mean_bleu, *rows) if rows else None,
    )


def _interval(setting: Setting) -> tuple[float, float | None, float | None]:
    """Over seeds and sentences where the sentences are known, else over seeds."""
    values = list(setting.values.values())
    if setting.scores:
        rows = np.concatenate([setting.scores[seed] for seed in setting.values], axis=-1)
        mean, *ends = two_level_interval(values, _mean_bleu(resampled_sums(rows, RESAMPLES)))
        found = mean, *np.clip(ends, 0.0, 100.0).tolist()  # there is no BLEU beyond
    else:
        found = mean_interval(values)
    mean, low, high = found
    return mean, _known(low), _known(high)


def _mean_bleu(sums: np.ndarray) -> np.ndarray:
    """The mean over seeds of BLEU, whose statistics stand side by side."""
    return bleu_of_statistics(sums.reshape(*sums.shape[:-1], -1, 10)).mean(-1)


def _known(value: float) -> float | None:
    return None if value != value else value


def _metric(sweep: Sweep) -> tuple[str, bool]:
    """What is compared, and whether less of it is better: of losses and errors."""
    name = sweep.config.sweep.metric or sweep.experiment.metric(sweep.config)
    return name, any(word in part for part in name.split(".")[1:] or [name] for word in LOWER)


def _warning(settings: Sequence[Setting], rows: Sequence[Row]) -> str:
    """What the table cannot find, with so few seeds."""
    seeds = max(len(setting.values) for setting in settings)
    comparisons = sum(row.p_flips is not None for row in rows)
    if seeds < 2:
        return "One seed: no interval over seeds, and no test over them."
    if comparisons and comparisons * 2.0 ** (1 - seeds) > LEVEL:
        return (
            f"With {seeds} seeds the sign-flip test cannot go below p = {2.0 ** (1 - seeds):.2g}: to find one of "
            f"{comparisons} differences at 5% after Holm's correction it needs {seeds_needed(comparisons)} seeds."
        )
    return ""
