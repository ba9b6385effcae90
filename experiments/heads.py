"""Heads of a finished translation run: what each is worth, what it looks at, and what it carries."""

import functools
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run, read_config
from attention_jax.stores import here
from attention_jax.tasks.heads.measuring import PARTS, measure
from attention_jax.tasks.heads.reporting import figures, tables
from attention_jax.tasks.heads.session import Session
from attention_jax.tasks.translation import model
from attention_jax.training.description import Description

POSITIVE = ("sentences", "orders", "couples")
A_RUN = "Train one: --config=configs/nmt.py:transformer_book,embedded --workdir=FOLDER"


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used, and for a run that has no heads or is not finished."""
    for name in config.parts:
        if name not in PARTS:
            raise UserError(f"config.parts: no part {name!r}: choose of {', '.join(PARTS)}.")
    for name in POSITIVE:
        if config[name] < 1:
            raise UserError(f"config.{name}={config[name]}: needs 1 or more.")
    run_of(config)


def run_of(config: ConfigDict) -> tuple[ConfigDict, Path]:
    """The config of the run that `config.run` names, and its folder. Raises UserError where there is none to measure."""
    asked = f"config.run={config.run!r}"
    if not config.run:
        raise UserError(f"{asked}: name the folder of a finished translation run. {A_RUN}.")
    path = here(config.run)
    of_run = read_config(path)
    if of_run is None:
        raise UserError(f"{asked}: no run there. {A_RUN}.")
    if "model" not in of_run or of_run.model.get("name") != "transformer":
        raise UserError(f"{asked}: not a Transformer that translates, and no other model has heads here. {A_RUN}.")
    if not (path / "result.json").exists():
        raise UserError(f"{asked}: not finished. Go on with it: --mode=train --workdir={config.run}.")
    if "patching" in config.parts and of_run.data.source != "embedded":
        raise UserError(
            f"{asked}: patching needs the embedded corpus, whose grammar has sentences that differ in one word; this "
            f"is {of_run.data.source!r}. Leave it out: --config.parts=removing,roles."
        )
    return of_run, path


def open_session(config: ConfigDict, folder: Path) -> Session:
    """The run, opened."""
    del folder
    return Session(config, *run_of(config))


def together(session: Session, how: str) -> Together:
    """Nothing is trained: a run is its measurements."""
    del how
    return Together(lambda configs, runs: [measure(session) for _ in runs])


def evaluate(session: Session, config: ConfigDict, run: Run) -> dict:
    """Measure again."""
    del config, run
    return measure(session)


def describe(config: ConfigDict) -> Description:
    """A step of the run's own training, on its largest bucket."""
    of_run, _ = run_of(config)
    data = of_run.data
    built = model.build(of_run, data.vocabulary, data.vocabulary)
    return model.describe(of_run, built, max(data.batch_tokens // data.buckets[-1], 1), data.buckets[-1])
