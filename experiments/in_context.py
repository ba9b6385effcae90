"""Regression in context: how near a Transformer that is trained on draws of functions comes to each estimator."""

import functools
from collections.abc import Sequence

from ml_collections import ConfigDict

from attention_jax.evaluation.statistics import over_seeds
from attention_jax.reports.extrapolation import length_curves
from attention_jax.reports.figures import Figure, colours
from attention_jax.reports.learning import learning_figure
from attention_jax.reports.page import Estimate, Table
from attention_jax.reports.run import estimate, measured_line, title_of
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.runs.keys import require_keys
from attention_jax.runs.pace import pace
from attention_jax.runs.training import check_training, trainer_of
from attention_jax.tasks.in_context.conclusion import OTHER_DRAWS, conclude
from attention_jax.tasks.in_context.session import Session
from attention_jax.training.description import Description


def together(session: Session, how: str) -> Together:
    """What runs share that differ in seed and optimizer: every program, and the estimators' answers."""
    session.check()
    return Together(functools.partial(finish, session), trainer_of(session.config, session.task, how))


def finish(session: Session, configs: Sequence[ConfigDict], runs: Sequence[Run]) -> list[dict]:
    """Measure trained runs, every seed of them, and what they cost."""
    return [
        evaluate(session, config, run) | {"backend": session.model.backend, "cost": session.cost | pace(run, config)}
        for config, run in zip(configs, runs, strict=True)
    ]


def evaluate(session: Session, config: ConfigDict, run: Run) -> dict:
    """Every seed's errors and distances; and the estimators' errors on the same draws."""
    found = [
        {"error": session.errors(variables), "distance": session.distances(variables)}
        for variables in session.variables(config, run.path)
    ]
    return over_seeds(found) | {"estimators": session.of_estimators}


def describe(config: ConfigDict) -> Description:
    """Shapes of the parameters and of one step."""
    return Session(config, None).description


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    require_keys("evaluate", config.evaluate, ("estimators", "pairs", "examples", "choosing", "seed"))
    check_training(config)
    Session(config, None).check()


def figures(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """Errors and distances by the number of pairs, and learning."""
    del session
    folder, flat, names = run.subfolder("figures"), flatten(result), config.evaluate.estimators
    of_names = {name: _by_pairs(result["estimators"][name]) for name in names}
    panels = {
        "error": {"model": measured_line(flat, "error"), **of_names},
        "distance of the model": {name: measured_line(flat, f"distance.{name}") for name in names},
    }
    palette = colours(["model", *names])
    caption = (
        "Squared error against the noiseless truth, and distances between answers, by the pairs before a query. "
        f"Estimators' intervals are over draws, the model's over seeds. {OTHER_DRAWS}"
    )
    lines = {"training": "train.loss", "held out": f"error.{config.data.pairs}"}
    return [
        length_curves(
            panels, None, folder / "in_context.png", xlabel="pairs", log_y=True, caption=caption, palette=palette
        ),
        learning_figure(
            run.metrics(),
            {"squared error": lines},
            folder / "learning.png",
            "Squared error by step: of all values in training, which are noisy, and against the truth after all pairs.",
        ),
    ]


def tables(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """The model's error and its distance to each estimator, and the estimators' errors, after all pairs."""
    del session, run
    flat, pairs = flatten(result), config.data.pairs
    rows: list[tuple] = [("model", estimate(flat, f"error.{pairs}"), None)]
    for name in config.evaluate.estimators:
        own = result["estimators"][name][str(pairs)]
        rows.append((name, Estimate(own["mse_mean"], *own["mse_ci95"]), estimate(flat, f"distance.{name}.{pairs}")))
    note = f"The estimators' intervals are over {config.evaluate.examples:,} held-out draws. {OTHER_DRAWS}"
    columns = ("", "squared error", "squared distance of the model's answers")
    return [Table(title_of(flat, f"After {pairs} pairs"), columns, rows, note)]


def _by_pairs(found: dict) -> tuple:
    """An estimator's errors to draw: pairs, means, and the ends of their intervals."""
    ends = zip(*(one["mse_ci95"] for one in found.values()), strict=True)
    return [int(pairs) for pairs in found], [one["mse_mean"] for one in found.values()], *ends


EXPERIMENT = Experiment(
    open=Session,
    together=together,
    evaluate=evaluate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    flops=lambda session: session.cost["flops"],
    conclude=conclude,
    metric=lambda config: f"error.{config.data.pairs}",
)
