"""A sweep's answer: its cells read, its settings compared, and tables, figures and a page written. Nothing is run."""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attention_jax.errors import UserError
from attention_jax.evaluation.comparison import Measured, notes, records
from attention_jax.evaluation.comparison import compare as compare_settings
from attention_jax.evaluation.metrics import find, require_comparable
from attention_jax.evaluation.metrics import metric as metric_of
from attention_jax.files import read_arrays
from attention_jax.reports.conclusion import Conclusion, FinishedCell
from attention_jax.reports.learning import learning_line
from attention_jax.reports.names import name_of_group, name_of_run, names_of
from attention_jax.reports.page import render
from attention_jax.reports.pivots import grid_tables
from attention_jax.reports.sweep import (
    Answer,
    Curve,
    Setting,
    cells_table,
    cost_tables,
    difference_tables,
    notes_of,
    palette_of,
    said,
    settings_table,
)
from attention_jax.reports.sweep_figures import figures_of
from attention_jax.reports.tables import write_tables
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import finished, made_by
from attention_jax.runs.folder import Run, to_json, write_result, write_whole
from attention_jax.sweeps.cells import index_of
from attention_jax.sweeps.folder import Sweep, failures, is_search, read_result, require_metrics
from attention_jax.sweeps.records import of_seeds, records_of, write_cells

ENDS = {"diverged": "diverged", "dropped": "dropped at a rung"}
COSTS = ("cost.parameters", "cost.flops", "cost.seconds", "cost.step_seconds", "cost.tokens_per_second")
BY_TEST = "Test figures choose nothing: settings are in the order of {}, and the best is chosen by it."
CHOSEN = "The first seeds ({}) chose at the rungs which settings go on; they are not reported."
CHOSE = (
    "Settings were chosen at rungs by the seeds that are reported: those that went on were lucky there, and their "
    "intervals cover less than 95%. config.population.halving_seeds sets seeds apart that choose."
)

UNKNOWN = (
    "{}: some tokenizers do not know up to {:,} tokens of the held-out text, and others fewer. No loss counts what "
    "such a token hides: figures of settings with different tokenizers do not compare exactly."
)

HELD_OUT = (
    "{}: settings that are compared were measured on different held-out data (other sentences, or less of a text): the "
    "best may be the one with the easier part."
)
SAME = "To the last bit the same in every seed and every metric: {}. What they differ in changed nothing: is it read?"


def write_answer(
    sweep: Sweep, compared: Sweep | None = None, conclude: Callable[[list[Answer]], Conclusion] | None = None
) -> Path:
    """Read every cell, and write table.md, .csv and .tex, tables/, result.json, figures/ and report.html; its path.

    Of a search, `compared` are the cells that the table of settings is of, and `conclude` says what leads it.

    Raises UserError where no cell is done, or none has a metric that was asked for.
    """
    answers = compare(compared or sweep)
    folder = sweep.path / "figures"
    folder.mkdir(exist_ok=True)
    palette, found = palette_of(answers[0]), Conclusion({}, [], [])
    if conclude is not None:
        found = conclude(answers)
    elif sweep.experiment.conclude is not None:
        found = sweep.experiment.conclude(sweep.config, _ended_cells(sweep), folder, palette)
    result = {**found.result, "orders": {**found.result.get("orders", {}), **_orders(answers)}}
    status = "finished" if all(map(sweep.is_done, sweep.plan.cells)) else "unfinished"
    result["cells"] = records_of(sweep)
    result = {**finished(sweep.config, result), **_made_by(sweep), "status": status}
    write_result(sweep.path, result)
    write_cells(sweep, result["cells"])
    title = f"{name_of_run(result)}, {sweep.path.name}"
    write_whole(sweep.path / "report.html", _page(sweep, title, answers, found, palette))
    return sweep.path / "report.html"


def _page(sweep: Sweep, title: str, answers: Sequence[Answer], found: Conclusion, palette: Mapping[str, str]) -> str:
    """The page; its tables are written as files on the way, and its figures drawn."""
    main, (grids, no_grid) = settings_table(answers), grid_tables(answers, sweep.config.sweep.within)
    ours, costs = [main, *difference_tables(answers), *grids], cost_tables(answers[0])
    before = [*found.tables, *ours] if found.leads else ours
    after = costs if found.leads else [*found.tables, *costs]
    sentences, notes = found.said or said(answers), [*found.notes, *notes_of(answers), *no_grid]
    write_tables(main, [table for table in (*before, *after) if table is not main], sweep.path, sentences, notes)
    drawn = figures_of(answers, sweep.path / "figures", palette)
    return render(
        title,
        [*before, *after, cells_table(answers[0], {name: sweep.flat[name]["seeds"] for name in sweep.plan.cells})],
        [*found.figures, *drawn] if found.leads else [*drawn, *found.figures],
        to_json(sweep.config),
        said=sentences,
        first=sum(not table.folded for table in before),
        notes=notes,
    )


def _orders(answers: Sequence[Answer]) -> dict[str, Any]:
    return {answer.metric: records(answer.comparison) for answer in answers}


def _made_by(sweep: Sweep) -> dict[str, Any]:
    """What the cells were made with, every version of it, and by which command the sweep was first answered."""
    found = made_by(result for name in sweep.plan.cells if (result := read_result(sweep.cell(name))))
    before = read_result(sweep.path) or {}
    return found | ({"command": before["command"]} if "command" in before else {})


def compare(sweep: Sweep) -> list[Answer]:
    """Every setting by every metric asked for, with its mean, interval and tests against the baseline.

    The first metric leads: settings are in its order, and the best is chosen by it; where that is of the test split,
    one that is not leads. Raises UserError where no finished cell has a metric, or one does not compare what was
    trained, and for a baseline or a key of `config.sweep.within` that no cell has.
    """
    names = require_metrics(sweep.config, sweep.experiment, [*sweep.flat.values()])
    found: dict[str, Answer] = {}
    for name in names:
        if (answer := _answer(sweep, name)) is None:
            raise UserError(f"{sweep.path}: no finished cell has {name!r}: name another with --config.sweep.metric=….")
        found[name] = answer
    lead = _leading(sweep, names[0]) if names[0].startswith("test.") else found[names[0]]
    return [lead, *(_following(lead, answer) for name, answer in found.items() if name != lead.metric)]


def _leading(sweep: Sweep, name: str) -> Answer:
    """What settings are ordered and chosen by where a metric of the test split is asked for first.

    It is the same metric of the validation split, or the one that its last part names, as `bleu` of `test.beams.bleu`;
    where no cell has these, what the experiment compares by. Raises UserError where nothing but the test split compares
    the settings.
    """
    measure = name.removeprefix("test.")
    own = (sweep.experiment.metric(sweep.config), *sweep.experiment.compared_by)
    for by in (f"validation.{measure}", f"validation.{measure.rpartition('.')[-1]}", *own):
        if find(by) and not by.startswith("test.") and _compares(sweep, by) and (answer := _answer(sweep, by)):
            return answer
    raise UserError(
        f"config.sweep.metric={name}: is of the test split, which chooses nothing. Name one of the validation split "
        "first."
    )


def _compares(sweep: Sweep, name: str) -> bool:
    """Whether a metric compares the settings of every group."""
    with contextlib.suppress(UserError):
        for group in sweep.agreeing(sweep.flat):
            require_comparable(name, "", [sweep.flat[cell] for cell in group], ())
        return True
    return False


def _following(lead: Answer, answer: Answer) -> Answer:
    """An answer with the order and the best of the one that leads; a note says so to who reads test figures."""
    notes = (BY_TEST.format(lead.metric), *answer.notes) if answer.metric.startswith("test.") else answer.notes
    comparison = answer.comparison._replace(order=lead.comparison.order, best=lead.comparison.best)
    return answer._replace(comparison=comparison, notes=notes)


def _answer(sweep: Sweep, name: str) -> Answer | None:
    """The settings compared by a metric; None where no finished cell has it."""
    failed, named = failures(sweep), _named(sweep)
    found = [_setting(sweep, name, one, failed) for one in named]
    measured, settings = [one for one, _ in found], [setting for _, setting in found]
    if not any(one.values for one in measured):
        return None
    compared = compare_settings(name, measured, [one.baseline for one in named])
    of_data = (*_of_held_out(sweep, name), *_of_unknown(sweep, name))
    told = (*_of_rungs(sweep, settings), *_of_same(sweep, named), *of_data, *notes(compared))
    return Answer(compared, settings, told)


class _Named(NamedTuple):
    """A setting as a sweep calls it: its cells, its name, its group, and the index of its baseline, if it has one."""

    cells: list[str]
    name: str
    group: str
    baseline: int | None


def _named(sweep: Sweep) -> list[_Named]:
    """The settings in the plan's order. Seeds and the keys of `config.sweep.within` make none."""
    every, within = sweep.settings_in(sweep.plan.cells), sweep.config.sweep.within
    overrides = [sweep.plan.cells[cells[0]].overrides for cells in every]
    names = names_of([{k: v for k, v in one.items() if k not in ("seeds", *within)} for one in overrides])
    groups = [name_of_group({key: sweep.flat[cells[0]].get(key) for key in within}) for cells in every]
    return [_Named(*one) for one in zip(every, names, groups, _baselines(sweep, every), strict=True)]


def _baselines(sweep: Sweep, every: Sequence[Sequence[str]]) -> list[int | None]:
    """The index of each setting's baseline, which agrees with it on `config.sweep.within`; None where there is none.

    No trial of a search is one.
    """
    if is_search(sweep.path):
        return [None] * len(every)
    indices = {names[0]: index for index, names in enumerate(every)}
    asked = sweep.config.sweep.baseline
    index_of([sweep.plan.cells[name].overrides for name in indices], asked)
    found: list[int | None] = [None] * len(every)
    for names in sweep.agreeing(indices):
        overrides = [_without_seeds(sweep.plan.cells[name].overrides) for name in names]
        with contextlib.suppress(UserError):  # a group may lack it
            own = indices[names[index_of(overrides, asked)]]
            for name in names:
                found[indices[name]] = own
    return found


def _ended_cells(sweep: Sweep) -> list[FinishedCell]:
    """All cells, with the seeds that are reported alone; those without numbers as if they had diverged."""
    found, every = [], _named(sweep)
    for setting in every:
        choosers = sweep.choosers(setting.cells)
        for name in setting.cells:
            result = read_result(sweep.cell(name))
            if result is None or result["status"] in ENDS:
                result = {"seeds": sweep.flat[name]["seeds"], "status": "diverged"}
            reported = [pair for pair in members_of(result) if pair[0] not in choosers]
            kept = result | {"seeds": [seed for seed, _ in reported], "members": [own for _, own in reported]}
            baseline = "" if setting.baseline is None else every[setting.baseline].name
            called = (setting.name, setting.group, baseline)
            found += [FinishedCell(sweep.config_of(name), sweep.cell(name), kept, *called)] if reported else []
    return found


def members_of(result: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Each seed of a result with its own numbers, as `of_seeds`; nothing where it ended before it was measured."""
    if result["status"] in ENDS:
        return [(seed, {}) for seed in result["seeds"]]
    return list(zip(result["seeds"], of_seeds(result), strict=False))


def _setting(sweep: Sweep, metric_name: str, named: _Named, failed: Collection[str]) -> tuple[Measured, Setting]:
    """The cells that differ in seeds alone, together: what was measured of them, and what else a reader is shown."""
    names = named.cells
    ended, choosers = [_ended(sweep, name, metric_name, failed) for name in names], sweep.choosers(names)
    reported = [one for one in ended if one.result and {*one.result["seeds"]} - choosers]
    values = {seed: value for one in ended for seed, value in one.values.items() if seed not in choosers}
    lost = sorted({*sweep.seeds_of(names)} - values.keys() - choosers)
    kept = [sentence_scores(sweep.cell(one.name), metric_name, one.result) for one in reported]
    statistics = {seed: rows for rows_of, _ in kept for seed, rows in rows_of.items() if seed in values}
    lines = [line for one in reported for line in Run(sweep.cell(one.name), 0.0).metrics()]
    measured = Measured(
        named.name,
        named.group,
        values=values,
        lost=tuple(lost),
        statistics=statistics if len(statistics) == len(values) else {},
        sentences="".join(sorted({of for _, of in kept})),
    )
    return measured, Setting(
        _without_seeds(sweep.plan.cells[names[0]].overrides),
        _costs([one.result for one in ended if one.result]),
        [one.end for one in ended if one.end],
        learning_curve([line for line in lines if line["seed"] not in choosers], metric_name),
        _attention(sweep.cell(reported[0].name)) if reported else None,
        tuple(names),
    )


class _Ended(NamedTuple):
    """How a cell ended: its result where it finished, the metric of every seed, and why any is not counted."""

    name: str
    result: dict[str, Any] | None
    values: dict[int, float]
    end: str


def _ended(sweep: Sweep, name: str, metric_name: str, failed: Collection[str]) -> _Ended:
    result = read_result(sweep.cell(name))
    if result is None or result["status"] in ENDS:
        return _Ended(name, None, {}, ENDS[result["status"]] if result else "failed" if name in failed else "missing")
    found = {seed: flatten(member).get(metric_name) for seed, member in members_of(result)}
    values = {seed: value for seed, value in found.items() if value is not None}
    return _Ended(name, result, values, "without a value" if len(values) < len(found) else "")


def _costs(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The means of what cells cost, of what is known of all of them."""
    costs = [flatten(result) for result in results]
    return {key: float(np.mean([c[key] for c in costs])) for key in COSTS if costs and all(c.get(key) for c in costs)}


def _without_seeds(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in overrides.items() if key != "seeds"}


def sentence_scores(cell: Path, metric: str, result: Mapping[str, Any] | None) -> tuple[dict[int, np.ndarray], str]:
    """Each seed's statistics of every sentence, and what tells sentences, and how they are counted, from others."""
    path, split = cell / "scores.npz", metric.partition(".")[0]
    if result is None or not path.exists():
        return {}, ""
    found = read_arrays(path, only=(metric, f"{split}.references"))
    if metric not in found:
        return {}, ""
    counted = f"{found[f'{split}.references']} {signature_of(result, metric)}"
    return dict(zip(result["seeds"], found[metric], strict=False)), counted


def signature_of(result: Mapping[str, Any], metric: str) -> str:
    """How a result's scores were counted, as sacreBLEU's signature says, but for its version; "" where it says none."""
    return flatten(members_of(result)[0][1]).get(f"{metric}_signature", "").partition("|version")[0]


def learning_curve(lines: Sequence[Mapping[str, Any]], metric: str) -> Curve:
    """The metric, or the training loss where that is not logged, at the steps at which every seed has it."""
    logged = metric if any(metric in line for line in lines) else "train.loss"
    found: dict[int, set[int]] = {}
    for line in lines:
        if line.get(logged) is not None:
            found.setdefault(line["step"], set()).add(line["seed"])
    most = max(map(len, found.values()), default=0)
    kept = [line for line in lines if len(found.get(line["step"], ())) == most]
    return Curve(logged, *learning_line(kept, logged))


def _attention(cell: Path) -> dict[str, Any] | None:
    path = cell / "scores.npz"
    if not path.exists():
        return None
    parts = {f"attention.0{part}": part for part in ("", ".source", ".target")}
    found = read_arrays(path, only=parts)
    return {part: found[name] for name, part in parts.items()} if found.keys() == parts.keys() else None


def _of_same(sweep: Sweep, every: Sequence[_Named]) -> list[str]:
    """A note on settings that differ in nothing that was measured, as where a model does not read what was varied."""
    alike: dict[tuple, list[str]] = {}
    for one in every:
        results = [read_result(sweep.cell(name)) for name in one.cells]
        ended = [result for result in results if result is not None and result["status"] not in ENDS]
        measured = tuple(_measured(member) for result in ended for _, member in members_of(result))
        if len(ended) == len(results) and any(measured):
            alike.setdefault(measured, []).append(f"{one.name}, {one.group}" if one.group else one.name)
    same = [" and ".join(names) for names in alike.values() if len(names) > 1]
    return [SAME.format("; ".join(same))] if same else []


def _measured(member: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """What was measured of a seed, but not what it cost."""
    found = sorted((key, value) for key, value in flatten(member).items() if isinstance(value, float))
    return tuple((key, value) for key, value in found if key != "seconds" and not key.startswith("cost."))


def _of_held_out(sweep: Sweep, name: str) -> list[str]:
    """A note where settings of a group were measured on different data of a split."""
    split = name.partition(".")[0]
    for group in sweep.agreeing(sweep.plan.cells):
        results = {cell: result for cell in map(sweep.cell, group) if (result := read_result(cell)) is not None}
        measured = {_held_out(cell, result, split) for cell, result in results.items() if result["status"] not in ENDS}
        if len(measured) > 1:
            return [HELD_OUT.format(name)]
    return []


def _held_out(cell: Path, result: Mapping[str, Any], split: str) -> tuple[Any, ...]:
    """What tells a split from another: how many pairs, or bytes, it has, and a digest of its sentences."""
    data, key = result.get("data", {}), f"{split}.references"
    kept = read_arrays(cell / "scores.npz", only=(key,)) if (cell / "scores.npz").exists() else {}
    counts = data.get("pairs", {}).get(split), data.get("splits", {}).get(split, {}).get("bytes")
    return *counts, str(kept.get(key, ""))


def _of_unknown(sweep: Sweep, name: str) -> list[str]:
    """A note where tokenizers of a group differ in how much they do not know of the text that a metric is of."""
    if not metric_of(name).of_text:
        return []
    path, most = f"data.splits.{name.partition('.')[0]}.unknown", 0
    for group in sweep.agreeing(sweep.plan.cells):
        results = [result for result in map(read_result, map(sweep.cell, group)) if result is not None]
        counts = {flatten(result).get(path, 0) for result in results if result["status"] not in ENDS}
        most = max(most, *counts) if len(counts) > 1 else most
    return [UNKNOWN.format(name, most)] if most else []


def _of_rungs(sweep: Sweep, settings: Sequence[Setting]) -> list[str]:
    """A note on which seeds chose the settings that are left, where rungs dropped others."""
    population = sweep.config.population
    if population.halving_seeds:
        every = {tuple(sorted(sweep.choosers(names))) for names in sweep.settings_in(sweep.plan.cells)}
        return [CHOSEN.format("; ".join(", ".join(map(str, seeds)) for seeds in sorted(every)))]
    return [CHOSE] if any(ENDS["dropped"] in setting.ends for setting in settings) else []
