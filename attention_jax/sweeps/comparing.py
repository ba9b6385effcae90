"""Finished runs compared as the settings of a sweep are, with no plan: the first is the baseline of the others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attention_jax.errors import UserError
from attention_jax.evaluation.comparison import Comparison, Interval, Measured, Row, compare, notes
from attention_jax.evaluation.metrics import incomparable, metric
from attention_jax.reports.page import Estimate, show_number
from attention_jax.runs.config import flatten, nested
from attention_jax.runs.experiment import Experiment, require_readable
from attention_jax.runs.folder import Run, read_config
from attention_jax.sweeps.answer import members_of, sentence_scores
from attention_jax.sweeps.settings import without_settings

METRICS = ("validation.loss", "validation.bleu", "test.loss", "test.bleu")
TESTS = {
    "p_seeds": "p, t over seeds",
    "p_flips": "p, sign flips",
    "p_sentences": "p, sentences swapped",
    "p_bootstrap": "p, sentences resampled",
    "p_adjusted": "p, Holm",
}
HOW = "Intervals are of 95%; differences are of the seeds that both have. Holm's correction is over a metric's rows."


class Finished(NamedTuple):
    """A run with its result; its config is flat."""

    path: Path
    config: dict[str, Any]
    result: dict[str, Any]


def compare_runs(experiment: Experiment, paths: Sequence[Path], asked: Sequence[str] = ()) -> str:
    """A table of every metric that compares the runs, or of those asked for, in Markdown.

    Raises UserError for a run that is not finished, runs that share no seed or were trained on other data, and metrics
    that do not compare them.
    """
    runs = [_read(path) for path in paths]
    _require_one_experiment(runs)
    for run in runs:
        require_readable(experiment, run.path, without_settings(nested(run.config)))
    if asked:
        return _written(runs, [_compared(name, runs) for name in asked])
    own = experiment.metric(nested(runs[0].config)) if "train.best_by" in runs[0].config else ""
    found, refused = [], []
    for name in dict.fromkeys(name for name in (*METRICS, own, *experiment.compared_by) if name):
        if all(_values(run, name) for run in runs):
            try:
                found.append(_compared(name, runs))
            except UserError as error:
                refused.append(error)
    if refused and not found:
        raise refused[0]
    if not found:
        raise UserError(f"--runs: there is none of {', '.join(METRICS)} in all of them: name a metric with --metric=….")
    return _written(runs, found)


def _read(path: Path) -> Finished:
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


def _compared(name: str, runs: Sequence[Finished]) -> Comparison:
    """The runs by one metric. Raises UserError where it does not compare them."""
    metric(name, "--metric")
    for run in runs:
        if not _values(run, name):
            raise UserError(f"--metric={name}: {run.path} has no such value.")
    if changed := incomparable(name, "--metric", [run.config for run in runs]):
        raise UserError(
            f"--metric={name}: the runs differ in {', '.join(changed)}, which changes what it measures and not only "
            "how well a model does. Choose another."
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


def _values(run: Finished, name: str) -> dict[int, float]:
    found = {seed: flatten(member).get(name) for seed, member in members_of(run.result)}
    return {seed: value for seed, value in found.items() if isinstance(value, (int, float))}


def _measured(run: Finished, name: str) -> Measured:
    statistics, sentences = sentence_scores(run.path, name, run.result)
    return Measured(str(run.path), values=_values(run, name), statistics=statistics, sentences=sentences)


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
    headers = (
        "metric",
        "run",
        "seeds",
        "mean",
        f"mean of {runs[0].path}",
        "difference",
        *(TESTS[name] for name in named),
    )
    lines = [_line(one, row, named) for one in found for row in one.rows[1:]]
    table = tabulate(lines, headers=headers, tablefmt="github", disable_numparse=True)
    said = [HOW, *dict.fromkeys(note for one in found for note in notes(one))]
    return "\n\n".join([table, *said])


def _line(comparison: Comparison, row: Row, tests: Sequence[str]) -> list[str]:
    seeds = len({*row.measured.values} & {*comparison.rows[0].measured.values})
    told = [getattr(row, name) for name in tests]
    shown = [_shown(one) for one in (row.value, comparison.rows[0].value, row.difference)]
    return [
        comparison.metric,
        row.measured.setting,
        str(seeds),
        *shown,
        *("" if p is None else show_number(p) for p in told),
    ]


def _shown(found: Interval | None) -> str:
    return "" if found is None else str(Estimate(*found))
