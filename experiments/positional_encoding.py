"""Which position encoding, and does it extrapolate? A language model, measured at and beyond the lengths it saw."""

import functools
from collections.abc import Iterator, Sequence

from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.evaluation.extrapolation import area
from attention_jax.evaluation.metrics import NATS
from attention_jax.evaluation.statistics import over_seeds
from attention_jax.files import read_arrays
from attention_jax.reports.extrapolation import attention_maps, length_curves
from attention_jax.reports.figures import Figure, colours
from attention_jax.reports.learning import learning_figure
from attention_jax.reports.page import Table
from attention_jax.reports.run import estimate, measured_line, title_of
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.runs.keys import require_keys
from attention_jax.runs.pace import pace
from attention_jax.runs.training import check_training, trainer_of
from attention_jax.tasks.language_model import prompts
from attention_jax.tasks.language_model.algorithmic import open_algorithmic
from attention_jax.tasks.language_model.extrapolation import BEYOND, conclude, name_of
from attention_jax.tasks.language_model.opened import OpenedLanguageModel
from attention_jax.tasks.language_model.portraits import write_portraits
from attention_jax.tasks.language_model.session import Session
from attention_jax.tasks.language_model.source import Curves
from attention_jax.tasks.language_model.text import identify, open_text
from attention_jax.tasks.language_model.training import task_of
from attention_jax.training.description import Description

OPENERS = {"algorithmic": open_algorithmic, "text": open_text}


def together(session: Session, how: str) -> Together:
    """What runs that differ in seed, task and optimizer share: a source and every program."""
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
        {"train": {"loss": last}, **with_areas(session, session.measure(variables, config))}
        for last, variables in zip(logged, every, strict=True)
    ]
    write_portraits(session, config, run.own, every[0])
    return over_seeds(found) | {"backend": session.model.backend, "cost": session.cost | pace(run, config)}


def evaluate(session: Session, config: ConfigDict, run: Run) -> dict:
    """Measure a trained run again."""
    every = session.variables(config, run.path)
    return over_seeds([with_areas(session, session.measure(variables, config)) for variables in every])


def with_areas(session: Session, curves: Curves) -> dict:
    """The curves, and the mean height of each from the trained length on."""
    beyond = [length for length in session.source.lengths if length >= session.source.trained]
    heights = {name: area(beyond, [curve[str(length)] for length in beyond]) for name, curve in curves.items()}
    return {"curves": curves, "area": heights}


def describe(config: ConfigDict) -> Description:
    """Shapes of the parameters and of one step."""
    return Session(config, None, OPENERS).description


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    require_keys("evaluate", config.evaluate, ("positions",))
    check_training(config)
    check_usable(Session(config, None, OPENERS))


def check_usable(session: Session) -> None:
    """Raise UserError for values of the data, the model, and what it writes that cannot be used."""
    session.check()
    if "generate" in session.config:
        prompts.require_usable(session.config.generate)


def generate(session: Session, config: ConfigDict, run: Run, prompt: str) -> Iterator[str]:
    """What the first seed writes after a prompt, as `config.generate` says. Raises UserError for a run without text."""
    if session.source.text is None:
        raise UserError(f"config.data.source={config.data.source!r}: has no text to go on with; only 'text' has.")
    prompts.require_usable(config.generate)
    return prompts.generate(session, config, session.variables(config, run.path)[0], prompt)


def figures(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """The measures against length, learning, and attention within and beyond the trained length."""
    folder, name, flat = run.subfolder("figures"), name_of(config), flatten(result)
    palette = colours([name, "train"])
    curves = {_said(measure): {name: measured_line(flat, f"curves.{measure}")} for measure in result["curves"]}
    drawn = [
        length_curves(curves, session.source.trained, folder / "extrapolation.png", palette=palette),
        learning_figure(
            run.metrics(), {NATS: {"train": "train.loss"}}, folder / "learning.png", "Training loss by step.", palette
        ),
    ]
    kept = read_arrays(run.own / "attention.npz")
    maps = [attention_maps({name: kept}, folder / "attention.png")] if kept else []
    return [*drawn, *maps]


def tables(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """The mean height of each measure, and the measures at every length."""
    del session, config, run
    flat = flatten(result)
    heights = [(_said(measure), estimate(flat, f"area.{measure}")) for measure in result["area"]]
    lengths = list(next(iter(result["curves"].values())))
    rows = [(int(n), *(estimate(flat, f"curves.{measure}.{n}") for measure in result["curves"])) for n in lengths]
    return [
        Table(title_of(flat, f"Mean {BEYOND}"), ("measure", "mean height of its curve"), heights),
        Table(title_of(flat, "By length"), ("length", *map(_said, result["curves"])), rows),
    ]


def _said(measure: str) -> str:
    return measure.replace("_", " ")


EXPERIMENT = Experiment(
    open=functools.partial(Session, openers=OPENERS),
    together=together,
    evaluate=evaluate,
    generate=generate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    identify=lambda config: identify(config.data) if config.data.source == "text" else "",
    opened=OpenedLanguageModel,
    dynamic=("data.task",),
    flops=lambda session: session.cost["flops"],
    conclude=conclude,
    metric=lambda config: "area.token_accuracy" if config.data.source == "algorithmic" else "area.perplexity",
)
