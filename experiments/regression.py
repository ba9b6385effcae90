"""Attention is regression: it and other answers to the same question, on the same draws of functions."""

from ml_collections import ConfigDict

from attention_jax.data.functions import KINDS
from attention_jax.reports.figures import Figure, colours
from attention_jax.reports.page import Estimate, Table
from attention_jax.reports.regression import error_curves, feature_curves
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.tasks.regression.estimators import ESTIMATORS
from attention_jax.tasks.regression.measuring import check, measure, program_of
from attention_jax.training.description import Description

BY = ("varies", "value", "function", "estimator")  # what tells errors apart


def together(config: ConfigDict, how: str) -> Together:
    """Nothing is trained step by step: a run is its measurements."""
    del how
    check(config)
    return Together(lambda configs, runs: [measure(one) for one in configs])


def evaluate(session: ConfigDict, config: ConfigDict, run: Run) -> dict:
    """Measure again."""
    del session, run
    return measure(config)


def describe(config: ConfigDict) -> Description:
    """No parameters: the program that measures every estimator at `config.data`."""
    return Description({}, *program_of(config))


def figures(session: ConfigDict, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """Errors by what varies, and random features by their count."""
    del session
    folder, palette = run.subfolder("figures"), colours(config.estimators)
    return [
        error_curves(result["errors"], folder / "errors.png", palette),
        feature_curves(result["features"], folder / "features.png"),
    ]


def tables(session: ConfigDict, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """Errors at `config.data`; attention beside kernel regression; the rate of random features; errors everywhere."""
    del session, run
    here = result["estimators"]
    said = ", ".join(f"{name} {value:g}" for name, value in config.data.items())
    means = {kind: [here[kind][name]["mse_mean"] for name in config.estimators] for kind in KINDS}
    best = {(means[kind].index(min(means[kind])), 2 + column) for column, kind in enumerate(KINDS)}
    rows = [
        (name, ESTIMATORS[name].formula, *(_estimate(here[kind][name]) for kind in KINDS)) for name in config.estimators
    ]
    note = (
        f"{said}. Means over {config.draws * len(config.seeds):,} draws with 95% intervals. Each estimator's own "
        f"numbers are the best on {config.choosing * len(config.seeds):,} other draws."
    )
    return [
        Table("Squared error against the noiseless truth", ("estimator", "", *KINDS), rows, note, best=best),
        _identity(result["identity"]),
        _rates(result["features"]),
        _everywhere(result["errors"]),
    ]


def _identity(found: dict) -> Table:
    rows = list(zip(found["width"], found["gaussian"], found["dot"], strict=True))
    columns = ("width / √d", "Gaussian score", "dot products at temperature width², less ‖k‖² / 2 width²")
    note = "The largest difference of any value in any draw, computed in float32 by formulas of their own."
    return Table("Attention beside Nadaraya–Watson regression", columns, rows, note)


def _rates(found: dict) -> Table:
    rows = [(f"{one['width']:g}", Estimate(**one["exponent"]), -0.5) for one in found]
    columns = ("width / √d", "exponent of their count", "known where there are enough")
    note = (
        "The difference between linear attention with positive random features and the softmax that it estimates is "
        "c · countᵖ. The variance of a feature grows as exp(‖q + k‖² / width²): where that is large, so must be their "
        "count before the rate holds."
    )
    return Table("Random features: the rate of their error", columns, rows, note)


def _everywhere(found: list[dict]) -> Table:
    rows = [
        (*(row[name] for name in BY), _estimate(row), ", ".join(f"{number:g}" for number in row["numbers"]))
        for row in found
    ]
    return Table("Squared errors everywhere", (*BY, "squared error", "its numbers"), rows, folded=True)


def _estimate(row: dict) -> Estimate:
    return Estimate(row["mse_mean"], *row["mse_ci95"])


EXPERIMENT = Experiment(
    together=together,
    evaluate=evaluate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    steps=lambda config: 1,
    metric=lambda config: f"estimators.{KINDS[0]}.{config.estimators[0]}.mse_mean",
)
