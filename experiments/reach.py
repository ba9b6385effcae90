"""How far does attention reach? A language model on tasks of recall, measured at many times its trained length."""

import functools
from collections.abc import Sequence

from ml_collections import ConfigDict

from attention_jax.evaluation.metrics import NATS
from attention_jax.evaluation.statistics import over_seeds
from attention_jax.reports.figures import Figure, colours
from attention_jax.reports.heads import PANELS
from attention_jax.reports.learning import learning_figure
from attention_jax.reports.page import Table
from attention_jax.reports.run import estimate, measured_line, title_of
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.runs.keys import require_keys
from attention_jax.runs.pace import pace
from attention_jax.runs.training import check_training, trainer_of
from attention_jax.tasks.language_model.algorithmic import open_algorithmic
from attention_jax.tasks.language_model.extrapolation import name_of, with_areas
from attention_jax.tasks.language_model.opened import OpenedLanguageModel
from attention_jax.tasks.language_model.reach import (
    accuracy_figure,
    by_times,
    conclude,
    held_of_input,
    require_usable,
    spread_figure,
    statistics_by_length,
)
from attention_jax.tasks.language_model.session import Session
from attention_jax.tasks.language_model.training import task_of
from attention_jax.training.description import Description
from attention_jax.training.state import Variables

OPENERS = {"algorithmic": open_algorithmic}


def together(session: Session, how: str) -> Together:
    """What runs that differ in seed, task and optimizer share: every program."""
    check_usable(session)
    return Together(
        finish=functools.partial(finish, session),
        trainer=trainer_of(session.config, task_of(session), how),
        traced=session.source.traced,
    )


def finish(session: Session, configs: Sequence[ConfigDict], runs: Sequence[Run]) -> list[dict]:
    """Measure trained runs, every seed of them, and what they cost; the training loss is that of the end."""
    return [_finish(session, *cell) for cell in zip(configs, runs, strict=True)]


def _finish(session: Session, config: ConfigDict, run: Run) -> dict:
    every = session.variables(config, run.path)
    logged = [run.mean_over_steps("train.loss", seed, after=config.train.steps - 1) for seed in config.seeds]
    found = [
        {"train": {"loss": last}, **measured(session, config, variables)}
        for last, variables in zip(logged, every, strict=True)
    ]
    held = {"held_bytes": held_of_input(session.evaluated_model, session.source.trained)}
    return over_seeds(found) | {"backend": session.model.backend, "cost": session.cost | held | pace(run, config)}


def measured(session: Session, config: ConfigDict, variables: Variables) -> dict:
    """Accuracy by length, the mean height of its curve, and what weights say by length."""
    curves = with_areas(session.source, session.measure(variables, config))
    return {**curves, "statistics": statistics_by_length(session, variables, config)}


def evaluate(session: Session, config: ConfigDict, run: Run) -> dict:
    """Measure a trained run again."""
    return over_seeds([measured(session, config, variables) for variables in session.variables(config, run.path)])


def describe(config: ConfigDict) -> Description:
    """Shapes of the parameters and of one step."""
    return Session(config, None, OPENERS).description


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    check_training(config)
    check_usable(Session(config, None, OPENERS))


def check_usable(session: Session) -> None:
    """Raise UserError for values of the data, the model, and what is measured that cannot be used."""
    require_keys("evaluate", session.config.evaluate, ("positions",))
    require_keys("statistics", session.config.statistics, ("rows",))
    require_usable(session.config)
    session.check()


def figures(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """The measures and what weights say by length, and learning."""
    folder, name, flat = run.subfolder("figures"), name_of(config), flatten(result)
    palette = colours([name, "train"])

    def line(of):
        return {name: by_times(measured_line(flat, of), session.source.trained)}

    curves = [accuracy_figure({"": line(f"curves.{one}")}, one, folder, palette) for one in result["curves"]]
    spread = {label: line(f"statistics.{one}") for one, label in PANELS.items()} if result["statistics"] else {}
    return [
        *curves,
        *([spread_figure(spread, folder, palette)] if spread else []),
        learning_figure(
            run.metrics(), {NATS: {"train": "train.loss"}}, folder / "learning.png", "Training loss by step.", palette
        ),
    ]


def tables(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """The measures, and what weights say, at every length."""
    del config, run
    flat, found = flatten(result), {"curves": result["curves"], "statistics": result["statistics"]}
    names = {f"{part}.{name}": name for part, measures in found.items() for name in measures}
    rows = [(n, *(estimate(flat, f"{path}.{n}") for path in names)) for n in session.source.lengths]
    return [Table(title_of(flat, "By length"), ("length", *(name.replace("_", " ") for name in names.values())), rows)]


EXPERIMENT = Experiment(
    open=functools.partial(Session, openers=OPENERS),
    together=together,
    evaluate=evaluate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    opened=OpenedLanguageModel,
    dynamic=("data.task",),
    flops=lambda session: session.cost["flops"],
    conclude=conclude,
    metric=lambda config: "area.token_accuracy",
)
