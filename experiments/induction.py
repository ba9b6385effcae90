"""Induction heads over training: every head's prefix-matching score, what the context gains, and when both rise."""

import functools
from collections.abc import Sequence

from ml_collections import ConfigDict

from attention_jax.evaluation.statistics import over_seeds
from attention_jax.reports.figures import Figure
from attention_jax.reports.induction import head_figure, head_table, learning_curves, result_table
from attention_jax.reports.page import Table
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.runs.keys import require_keys
from attention_jax.runs.pace import pace
from attention_jax.runs.training import check_training, trainer_of
from attention_jax.tasks.language_model.induction import OPENERS, phase_of, require_dated
from attention_jax.tasks.language_model.opened import OpenedLanguageModel
from attention_jax.tasks.language_model.session import Session
from attention_jax.tasks.language_model.stream import identify
from attention_jax.tasks.language_model.training import task_of
from attention_jax.training.description import Description

EVALUATED = {"repeated": ("positions",), "text": ("length", "stride", "batch", "tokens", "positions")}


def together(session: Session, how: str) -> Together:
    """What runs with this session's model and data share."""
    session.check()
    return Together(
        finish=functools.partial(finish, session), trainer=trainer_of(session.config, task_of(session), how)
    )


def finish(session: Session, configs: Sequence[ConfigDict], runs: Sequence[Run]) -> list[dict]:
    """Measure trained runs, every seed of them, and date their phase changes by what was logged."""
    return [_finish(session, *cell) for cell in zip(configs, runs, strict=True)]


def _finish(session: Session, config: ConfigDict, run: Run) -> dict:
    every, metrics = session.variables(config, run.path), run.metrics()
    found = [
        {**session.measure(variables, config), "phase": phase_of(metrics, seed)}
        for seed, variables in zip(config.seeds, every, strict=True)
    ]
    return over_seeds(found) | {"backend": session.model.backend, "cost": session.cost | pace(run, config)}


def evaluate(session: Session, config: ConfigDict, run: Run) -> dict:
    """Measure a trained run again."""
    return over_seeds([session.measure(variables, config) for variables in session.variables(config, run.path)])


def describe(config: ConfigDict) -> Description:
    """Shapes of the parameters and of one step."""
    return Session(config, None, OPENERS).description


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    require_dated(config)
    check_training(config)
    Session(config, None, OPENERS).check()
    require_keys("evaluate", config.evaluate, EVALUATED[config.data.source])


def figures(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """What is learnt when: means over seeds; and every head of the first seed."""
    del session
    folder, metrics, phase = run.subfolder("figures"), run.metrics(), flatten(result)
    first = [line for line in metrics if line["seed"] == config.seeds[0]]
    return [
        learning_curves(metrics, phase, folder / "learning.png"),
        head_figure(first, config.seeds[0], folder / "heads.png"),
    ]


def tables(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """The phase change and what the best checkpoint has, and every head's score in it."""
    del session, run
    flat = flatten(result)
    return [result_table(flat), head_table(result.get("members", [result]), config.seeds)]


EXPERIMENT = Experiment(
    open=functools.partial(Session, openers=OPENERS),
    together=together,
    evaluate=evaluate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    identify=lambda config: identify(config.data) if config.data.source == "text" else "",
    opened=OpenedLanguageModel,
    flops=lambda session: session.cost["flops"],
    metric=lambda config: "induction.prefix_best",
)
