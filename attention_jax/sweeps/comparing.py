"""Finished runs compared as the settings of a sweep are, with no plan: the first is the baseline of the others."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attention_jax.errors import UserError
from attention_jax.evaluation.comparison import LEVEL, Comparison, Measured, Row, compare, notes
from attention_jax.evaluation.metrics import incomparable, metric
from attention_jax.reports.page import show, show_number
from attention_jax.reports.sweep import RATIOS, difference, estimate, has_ratios, tested
from attention_jax.runs.config import flatten, nested
from attention_jax.runs.experiment import Experiment, require_readable
from attention_jax.runs.folder import Run, read_config
from attention_jax.sweeps.answer import members_of, sentence_scores, signature_of
from attention_jax.sweeps.folder import refuse_sweep
from attention_jax.sweeps.records import OF_ALL
from attention_jax.sweeps.settings import without_settings

METRICS = ("validation.loss", "validation.bleu", "test.loss", "test.bleu")
TESTS = {
    "p_seeds": "p, t over seeds",
    "p_flips": "p, sign flips",
    "p_sentences": "p, sentences swapped",
    "p_bootstrap": "p, sentences resampled",
    "p_adjusted": "p, Holm",
}
EQUAL = "does as well as"
HOW = "Intervals are of 95%; differences are of the seeds that both have. Holm's correction is over a metric's rows."


class Finished(NamedTuple):
    """A run with its result; its config is flat."""

    path: Path
    config: dict[str, Any]
    result: dict[str, Any]


def compare_runs(experiment: Experiment, paths: Sequence[Path], asked: Sequence[str] = ()) -> str:
    """Whether the runs differ from the first by every metric that compares them, or by those asked for, in Markdown.

    A sentence a metric and run, and a table.

    Raises UserError for a run that is not finished, runs that share no seed or were trained on other data, and metrics
    that do not compare them.
    """
    runs = [_read(path) for path in paths]
    _require_one_experiment(runs)
    for run in runs:
        require_readable(experiment, run.path, without_settings(nested(run.config)))
    own = experiment.metric(nested(runs[0].config)) if "train.best_by" in runs[0].config else ""
    every = dict.fromkeys(name for name in (*METRICS, own, *experiment.compared_by) if name)
    known = [name for name in every if all(_values(run, name) for run in runs)]
    if asked:
        return _written(runs, [_compared(name, runs, known) for name in asked])
    found, refused = [], []
    for name in known:
        try:
            found.append(_compared(name, runs, known))
        except UserError as error:
            refused.append(error)
    if refused and not found:
        raise refused[0]
    if not found:
        raise UserError(f"--runs: there is none of {', '.join(METRICS)} in all of them: name a metric with --metric=….")
    return _written(runs, found)


def _read(path: Path) -> Finished:
    refuse_sweep(path, "compare", "--runs")
    config, result = read_config(path), Run(path, 0.0).result()
    if config is None:
        raise UserError(f"--runs: {path} holds no run.")
    if result is None or result["status"] != "finished":
        raise UserError(f"--runs: {path} is not finished. Go on with it: --mode=train --workdir={path}.")
    if "members" not in result and len(result["seeds"]) != 1:
        raise UserError(f"--runs: {path} has no numbers of each seed: compare its cells, {path / 'cells'}.")
    return Finished(path, flatten(config), result)


def _require_one_experiment(runs: Sequence[Finished]) -> None:
    for run in runs[1:]:
        if run.config["experiment"] != runs[0].config["experiment"]:
            both = f"{run.config['experiment']!r}, and {runs[0].path} of {runs[0].config['experiment']!r}"
            raise UserError(f"--runs: {run.path} is of experiment {both}: they have no metric in common.")
    names = [str(run.path) for run in runs]
    if len({*map(Path.resolve, (run.path for run in runs))}) < len(runs):
        raise UserError(f"--runs={','.join(names)}: the same run twice.")


def _compared(name: str, runs: Sequence[Finished], known: Sequence[str]) -> Comparison:
    """The runs by one metric. Raises UserError where it does not compare them, with one of those `known` that does."""
    metric(name, "--metric")
    _require_values(name, runs)
    if changed := _changed(name, runs):
        raise UserError(
            f"--metric={name}: the runs differ in {', '.join(changed)}, which changes what it measures and not only "
            f"how well a model does. {_advice(known, runs)}"
        )
    measured = [_measured(run, name) for run in runs]
    for run, own in zip(runs[1:], measured[1:], strict=True):
        _require_same_data(name, (runs[0], measured[0]), (run, own))
        if not {*own.values} & {*measured[0].values}:
            seeds = " and ".join(str(sorted(one.values)) for one in (measured[0], own))
            raise UserError(
                f"--runs: {runs[0].path} and {run.path} share no seed ({seeds}), and the tests pair seeds. A "
                f"finished run gains seeds: --workdir={run.path} --config.seeds=…."
            )
    return compare(name, measured, [None, *[0] * (len(runs) - 1)])


def _advice(known: Sequence[str], runs: Sequence[Finished]) -> str:
    for name in known:
        with contextlib.suppress(UserError):
            _compared(name, runs, ())
            return f"Choose another: --metric={name}."
    return "No metric that both have compares them."


def _require_values(name: str, runs: Sequence[Finished]) -> None:
    """Raise UserError where a run has no value of any seed, or one of all seeds together."""
    if name.partition(".")[0] in OF_ALL:
        raise UserError(
            f"--metric={name}: is of all seeds of a run together, and runs are compared seed by seed. Each run's own "
            "is in its result.json."
        )
    for run in runs:
        if not _values(run, name):
            raise UserError(f"--metric={name}: {run.path} has no such value.")


def _changed(name: str, runs: Sequence[Finished]) -> list[str]:
    """What keeps a metric from comparing runs: keys of their configs, or how their scores were counted."""
    counted = {signature_of(run.result, name) for run in runs}
    keys = incomparable(name, "--metric", [run.config for run in runs])
    return keys or [f"what sacreBLEU counted ({' and '.join(sorted(counted))})"] * (len(counted) > 1)


def _values(run: Finished, name: str) -> dict[int, float]:
    found = {seed: flatten(member).get(name) for seed, member in members_of(run.result)}
    return {seed: value for seed, value in found.items() if isinstance(value, (int, float))}


def _measured(run: Finished, name: str) -> Measured:
    values, (statistics, sentences) = _values(run, name), sentence_scores(run.path, name, run.result)
    return Measured(
        str(run.path),
        values=values,
        lost=tuple(seed for seed in run.result["seeds"] if seed not in values),
        statistics={seed: rows for seed, rows in statistics.items() if seed in values},
        sentences=sentences,
    )


def _require_same_data(name: str, first: tuple[Finished, Measured], other: tuple[Finished, Measured]) -> None:
    """Raise UserError where a metric is of other data: of other sentences; of other tokens, where these are not known.

    Data without a fingerprint are told by the config.
    """
    (one, of_one), (two, of_two) = first, other
    if of_one.sentences and of_one.sentences == of_two.sentences:
        return
    prints = [run.result.get("data", {}).get("fingerprint") for run in (one, two)]
    keys = [
        key
        for key in {**one.config, **two.config}
        if key.startswith("data.") and one.config.get(key) != two.config.get(key)
    ]
    if prints[0] != prints[1] or (prints[0] is None and keys):
        what = ", ".join(f"config.{key}" for key in keys) or "the files have changed"
        raise UserError(f"--runs: {two.path} is of other data than {one.path} ({what}): {name} does not compare them.")


def _written(runs: Sequence[Finished], found: Sequence[Comparison]) -> str:
    from tabulate import tabulate

    named = [name for name in TESTS if any(getattr(row, name) is not None for one in found for row in one.rows)]
    contrasts = [*dict.fromkeys(one.contrast for one in found)]
    headers = (
        "metric",
        "run",
        "seeds of both",
        "mean",
        f"mean of {runs[0].path}",
        *contrasts,
        *(TESTS[name] for name in named),
    )
    lines = [_line(one, row, contrasts, named) for one in found for row in one.rows[1:]]
    table = tabulate(lines, headers=headers, tablefmt="github", disable_numparse=True)
    explained = [HOW, *[RATIOS] * any(map(has_ratios, found))]
    said = [_said(one, row) for one in found for row in one.rows[1:]]
    return "\n\n".join([*said, table, *explained, *dict.fromkeys(note for one in found for note in notes(one))])


def _said(comparison: Comparison, row: Row) -> str:
    """Which of a run and the first does better by a metric, by how much, and whether that is shown."""
    first, own, name = comparison.rows[0].measured.setting, row.measured.setting, comparison.metric
    assert row.difference is not None
    how = _direction(name, row.difference.mean)
    is_shown = row.p_adjusted is not None and row.p_adjusted < LEVEL
    link = "; the" if row.p_adjusted is None or how == EQUAL else ": the" if is_shown else ", but the"
    over = f"over {_seeds(comparison, row)} seeds" if _seeds(comparison, row) != "1" else "with one seed"
    return f"By {name} {over}, {own} {how} {first}{link} {comparison.contrast} is {tested(comparison, row)}."


def _direction(name: str, difference: float) -> str:
    """In which direction a difference, or a ratio, is."""
    row = metric(name)
    same = 1.0 if row.is_log else 0.0
    if difference == same:
        return EQUAL
    if row.more_is_better is None:
        return "is above" if difference > same else "is below"
    return "does better than" if (difference > same) == row.more_is_better else "does worse than"


def _seeds(comparison: Comparison, row: Row) -> str:
    """The seeds that a run and the first have values of, and of how many where others lost theirs: 1 of 2."""
    own, first = row.measured, comparison.rows[0].measured
    trained = {*own.values, *own.lost} & {*first.values, *first.lost}
    known = own.values.keys() & first.values.keys()
    return str(len(known)) if known == trained else f"{len(known)} of {len(trained)}"


def _own(comparison: Comparison, row: Row) -> str:
    """A run's mean with its interval; over how many seeds, where runs have other numbers of them."""
    counts = {len(one.measured.values) for one in comparison.rows}
    return show(estimate(row.value)) + (f" of {len(row.measured.values)} seeds" if len(counts) > 1 else "")


def _line(comparison: Comparison, row: Row, contrasts: Sequence[str], tests: Sequence[str]) -> list[str]:
    told = [getattr(row, name) for name in tests]
    values = [_own(comparison, one) for one in (row, comparison.rows[0])]
    differences = [difference(comparison, row) if one == comparison.contrast else "" for one in contrasts]
    return [
        comparison.metric,
        row.measured.setting,
        _seeds(comparison, row),
        *values,
        *map(show, differences),
        *("" if p is None else show_number(p) for p in told),
    ]
