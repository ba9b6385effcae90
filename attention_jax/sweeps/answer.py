"""A sweep's answer: its cells read, its settings compared, and tables, figures and a page written. Nothing is run."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention_jax.errors import UserError
from attention_jax.evaluation.bleu import bleu_of_statistics
from attention_jax.evaluation.metrics import Metric, metric
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
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import FinishedCell, finished
from attention_jax.runs.folder import Run, to_json, write_result, write_whole
from attention_jax.sweeps.cells import place_of
from attention_jax.sweeps.folder import Sweep, failures, read_result, require_metrics

LEVEL = 0.05
ENDS = {"diverged": "diverged", "dropped": "dropped at a rung"}
COSTS = ("cost.parameters", "cost.flops", "cost.seconds", "cost.step_seconds", "cost.tokens_per_second")
BY_TEST = "Test figures, for the last word: settings are in the order of {}, and the best is chosen by it."
CHOSEN = "The first seeds ({}) chose at the rungs which settings go on; they are not reported."
CHOSE = (
    "Settings were chosen at rungs by the seeds that are reported: those that went on were lucky there, and their "
    "intervals cover less than 95%. config.population.halving_seeds sets seeds apart that choose."
)


def write_answer(sweep: Sweep) -> Path:
    """Read every cell, and write table.md, .csv and .tex, result.json, figures/ and report.html; the page's path.

    Raises UserError where no cell is done, or none has the metric.
    """
    answers = compare(sweep)
    folder = sweep.path / "figures"
    folder.mkdir(exist_ok=True)
    tables, figures = [table_of(answer) for answer in answers], figures_of(answers[0], folder)
    write_tables(tables, sweep.path)
    result: dict[str, Any] = {"orders": {answer.metric: order_of(answer) for answer in answers}}
    if sweep.experiment.conclude is not None:
        found = sweep.experiment.conclude(sweep.config, _ended_cells(sweep), folder)
        if found.leads:
            tables, figures = [*found.tables, *tables], [*found.figures, *figures]
        else:
            tables, figures = [*tables, *found.tables], [*figures, *found.figures]
        result = {**found.result, "orders": {**found.result["orders"], **result["orders"]}}
    status = "finished" if all(map(sweep.is_done, sweep.plan.cells)) else "unfinished"
    write_result(sweep.path, {**finished(sweep.config, result), **_made_by(sweep), "status": status})
    page = render(f"{sweep.config.experiment}: {sweep.path.name}", tables, figures, to_json(sweep.config))
    write_whole(sweep.path / "report.html", page)
    return sweep.path / "report.html"


def _made_by(sweep: Sweep) -> dict[str, Any]:
    """What the cells were made with, every version of it, and by which command the sweep was first answered."""
    results = [result for name in sweep.plan.cells if (result := read_result(sweep.cell(name)))]
    found: dict[str, Any] = {}
    for key in ("code", "device", "versions"):
        every = {repr(result[key]): result[key] for result in results if key in result}
        found[key] = next(iter(every.values())) if len(every) == 1 else list(every.values())
    before = read_result(sweep.path) or {}
    return found | ({"command": before["command"]} if "command" in before else {})


def compare(sweep: Sweep) -> list[Answer]:
    """Every setting with its mean, interval and tests against the baseline; by validation first, where test was asked.

    Raises UserError where no finished cell has the metric, or it does not compare what was trained.
    """
    name = require_metrics(sweep.config, sweep.experiment, [*sweep.flat.values()])
    asked = _settings(sweep, name)
    if not any(setting.values for setting in asked):
        raise UserError(f"{sweep.path}: no finished cell has {name!r}: name another with --config.sweep.metric=….")
    split, _, measure = name.partition(".")
    leading = _settings(sweep, f"validation.{measure}") if split == "test" else []
    if not any(setting.values for setting in leading):
        return [_compared(sweep, name, asked)]
    lead = _compared(sweep, f"validation.{measure}", leading)
    test = _compared(sweep, name, asked)
    notes = (BY_TEST.format(lead.metric), *test.notes)
    return [lead, test._replace(order=lead.order, best=lead.best, notes=notes)]


def _compared(sweep: Sweep, name: str, settings: Sequence[Setting]) -> Answer:
    baselines = _baselines(sweep, settings)
    rows = [
        _row(metric(name), setting, settings[own], place == own)
        for place, (setting, own) in enumerate(zip(settings, baselines, strict=True))
    ]
    compared = [row for place, row in enumerate(rows) if place != baselines[place] and row.mean is not None]
    has_sentences = all(row.p_sentences is not None for row in compared)
    if not has_sentences:
        rows = [row._replace(p_sentences=None, p_bootstrap=None) for row in rows]
    chosen = [row.p_sentences if has_sentences else row.p_seeds for row in rows]
    adjusted = holm([float("nan") if p is None else p for p in chosen])
    rows = [row._replace(p_adjusted=None if p != p else p) for row, p in zip(rows, adjusted, strict=True)]
    order = _best_first(metric(name), rows, baselines)
    notes = _notes(sweep, settings, rows)
    return Answer(name, metric(name).more_is_better, rows, order, _best(name, rows, baselines, order), baselines, notes)


def _best_first(row_of: Metric, rows: Sequence[Row], baselines: Sequence[int]) -> tuple[int, ...]:
    """The places of all rows, those of one baseline together: whole settings, those that lack seeds, the empty."""

    def rank(place):
        row = rows[place]
        return baselines[place], row.mean is None, bool(row.setting.lacking), -row_of.height(row.mean)

    return tuple(sorted(range(len(rows)), key=rank))


def _best(name: str, rows: Sequence[Row], baselines: Sequence[int], order: Sequence[int]) -> frozenset[int]:
    """The best setting of those that share a baseline, of those that lack no seed: one that diverged has only luck."""
    if metric(name).more_is_better is None:
        return frozenset()
    best: dict[int, int] = {}
    for place in order:
        if rows[place].mean is not None and not rows[place].setting.lacking:
            best.setdefault(baselines[place], place)
    return frozenset(best.values())


def _baselines(sweep: Sweep, settings: Sequence[Setting]) -> tuple[int, ...]:
    """The place of each setting's baseline: of those that agree with it on `config.sweep.within`."""
    place_of_cell = {names[0]: place for place, names in enumerate(sweep.settings_in(sweep.plan.cells))}
    found = [0] * len(settings)
    for names in sweep.agreeing(place_of_cell):
        places = [place_of_cell[name] for name in names]
        own = places[place_of([settings[place].overrides for place in places], sweep.config.sweep.baseline)]
        for place in places:
            found[place] = own
    return tuple(found)


def _ended_cells(sweep: Sweep) -> list[FinishedCell]:
    """The cells that finished or diverged, with the seeds that are reported alone."""
    found = []
    for setting in sweep.settings_in(sweep.plan.cells):
        choosers = sweep.choosers(setting)
        for name in setting:
            result = read_result(sweep.cell(name))
            if result is None or result["status"] == "dropped":
                continue
            every = [(seed, result) for seed in result["seeds"]] if result["status"] in ENDS else _members(result)
            members = [pair for pair in every if pair[0] not in choosers]
            kept = result | {"seeds": [seed for seed, _ in members], "members": [member for _, member in members]}
            overrides = dict(sweep.plan.cells[name].overrides)
            found += [FinishedCell(sweep.config_of(name), sweep.cell(name), kept, overrides)] if members else []
    return found


def _members(result: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Each seed of a finished result with what was measured of it; what all seeds together made is the first's."""
    return list(zip(result["seeds"], result.get("members") or [result], strict=False))


def _settings(sweep: Sweep, name: str) -> list[Setting]:
    """The cells that differ in seeds alone, together, in the plan's order."""
    failed = failures(sweep)
    return [_setting(sweep, name, setting, failed) for setting in sweep.settings_in(sweep.plan.cells)]


def _setting(sweep: Sweep, metric_name: str, names: Sequence[str], failed: Collection[str]) -> Setting:
    values: dict[int, float] = {}
    costs: list[dict[str, float]] = []
    scores: dict[int, np.ndarray] = {}
    references: set[str] = set()
    ends: list[str] = []
    reported: list[str] = []
    choosers, lacking = sweep.choosers(names), 0
    for name in names:
        result = read_result(sweep.cell(name))
        if result is None or result["status"] in ENDS:
            ends.append(ENDS[result["status"]] if result else "failed" if name in failed else "missing")
            lacking += len({*sweep.flat[name]["seeds"]} - choosers)
            continue
        reported += [name] if {*result["seeds"]} - choosers else []
        for place, (seed, member) in enumerate(_members(result)):
            value = flatten(member).get(metric_name)
            if seed in choosers:
                continue
            if value is None:
                ends.append("without a value")
                lacking += 1
                continue
            values[seed] = value
            kept, of = _sentence_scores(sweep.cell(name), metric_name, place)
            scores |= {} if kept is None else {seed: kept}
            references.add(of)
        costs.append({key: value for key, value in flatten(result).items() if key in COSTS and value is not None})
    overrides = {key: value for key, value in sweep.plan.cells[names[0]].overrides.items() if key != "seeds"}
    cost = {key: float(np.mean([c[key] for c in costs])) for key in COSTS if costs and all(key in c for c in costs)}
    lines = [line for name in reported for line in Run(sweep.cell(name), 0.0).metrics() if line["seed"] not in choosers]
    return Setting(
        overrides,
        values,
        lacking,
        scores if len(scores) == len(values) else {},
        "".join(references),
        cost,
        ends,
        learning_curve(lines, metric_name),
        _attention(sweep.cell(reported[0])) if reported else None,
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


def _row(row_of: Metric, setting: Setting, baseline: Setting, is_baseline: bool) -> Row:
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
        *_interval(row_of, setting),
        difference=float(np.mean(pair[0]) - np.mean(pair[1])) if common else None,
        p_seeds=_known(paired_t(*pair)) if has_pairs else None,
        p_flips=sign_flip(*pair) if has_pairs else None,
        p_sentences=approximate_randomization(_mean_bleu, *rows) if rows else None,
        p_bootstrap=paired_bootstrap(_mean_bleu, *rows) if rows else None,
    )


def _interval(row_of: Metric, setting: Setting) -> tuple[float, float | None, float | None]:
    """Over seeds and sentences where the sentences are known, else over seeds; never beyond what the metric can be."""
    values = list(setting.values.values())
    if setting.scores:
        rows = np.concatenate([setting.scores[seed] for seed in setting.values], axis=-1)
        mean, *ends = two_level_interval(values, _mean_bleu(resampled_sums(rows, RESAMPLES)))
    else:
        mean, *ends = mean_interval(values)
    low, high = np.clip(ends, row_of.low, row_of.high).tolist()
    return mean, _known(low), _known(high)


def _mean_bleu(sums: np.ndarray) -> np.ndarray:
    """The mean over seeds of BLEU, whose statistics stand side by side."""
    return bleu_of_statistics(sums.reshape(*sums.shape[:-1], -1, 10)).mean(-1)


def _known(value: float) -> float | None:
    return None if value != value else value


def _notes(sweep: Sweep, settings: Sequence[Setting], rows: Sequence[Row]) -> tuple[str, ...]:
    """What a reader of the table must know: who chose the settings, and what it cannot find with so few seeds."""
    population, notes = sweep.config.population, []
    if population.halving_seeds == 0 and any(ENDS["dropped"] in setting.ends for setting in settings):
        notes.append(CHOSE)
    elif population.halving_seeds:
        every = {tuple(sorted(sweep.choosers(names))) for names in sweep.settings_in(sweep.plan.cells)}
        notes.append(CHOSEN.format("; ".join(", ".join(map(str, seeds)) for seeds in sorted(every))))
    seeds = max(len(setting.values) for setting in settings)
    comparisons = sum(row.p_flips is not None for row in rows)
    if seeds < 2:
        notes.append("One seed: no interval over seeds, and no test over them.")
    elif comparisons and comparisons * 2.0 ** (1 - seeds) > LEVEL:
        notes.append(
            f"With {seeds} seeds the sign-flip test cannot go below p = {2.0 ** (1 - seeds):.2g}: to find one of "
            f"{comparisons} differences at 5% after Holm's correction it needs {seeds_needed(comparisons)} seeds."
        )
    return tuple(notes)
