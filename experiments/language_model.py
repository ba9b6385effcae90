"""A language model of any text: trained, measured, and made to write."""

import functools
from collections.abc import Iterator, Sequence

from ml_collections import ConfigDict

from attention_jax.evaluation.statistics import over_seeds
from attention_jax.reports.figures import Figure
from attention_jax.reports.heads import heads_figure
from attention_jax.reports.language_model import learning_curves, result_table, samples_table, text_table
from attention_jax.reports.page import Table
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.runs.keys import require_keys
from attention_jax.runs.pace import pace
from attention_jax.runs.training import check_training, trainer_of
from attention_jax.tasks.language_model import heads, prompts
from attention_jax.tasks.language_model.messages import tell_text
from attention_jax.tasks.language_model.opened import OpenedLanguageModel
from attention_jax.tasks.language_model.session import Session
from attention_jax.tasks.language_model.stream import OPENERS, evaluate_file, identify
from attention_jax.tasks.language_model.training import task_of
from attention_jax.tasks.language_model.transfer import conclude
from attention_jax.training.description import Description

EVALUATED = ("length", "stride", "batch", "tokens", "positions")  # keys of `config.evaluate`
GENERATED = ("tokens", "temperature", "top_k", "top_p", "samples", "seed", "prompts", "context")


def together(session: Session, how: str) -> Together:
    """What runs with this session's model and data share: the text, and every program."""
    check_usable(session)
    if session.source.text is not None:
        tell_text(session.source.text, session.config.data)
    return Together(
        finish=functools.partial(finish, session),
        trainer=trainer_of(session.config, task_of(session), how),
    )


def finish(session: Session, configs: Sequence[ConfigDict], runs: Sequence[Run]) -> list[dict]:
    """Measure trained runs, every seed of them, and what they cost; the training loss is that of the end."""
    return [_finish(session, *cell) for cell in zip(configs, runs, strict=True)]


def _finish(session: Session, config: ConfigDict, run: Run) -> dict:
    every = session.variables(config, run.path)
    logged = [run.mean_over_steps("train.loss", seed, after=config.train.steps - 1) for seed in config.seeds]
    results = [
        {"train": {"loss": loss}, **session.measure(variables, config)}
        for loss, variables in zip(logged, every, strict=True)
    ]
    prompts.write_samples(session, config, every[0], run.own)
    heads.write_statistics(session, config, every[0], run.own)
    data = {} if session.source.text is None else {k: v for k, v in session.source.text.meta.items() if k != "digests"}
    more = {"backend": session.model.backend, "cost": session.cost | pace(run, config), "data": data}
    return over_seeds(results) | more


def evaluate(session: Session, config: ConfigDict, run: Run) -> dict:
    """Measure a trained run again, as `config.evaluate` says."""
    return over_seeds([session.measure(variables, config) for variables in session.variables(config, run.path)])


def evaluate_text(session: Session, config: ConfigDict, run: Run, path: str) -> dict:
    """Measure a trained run on a text that it need not know."""
    return over_seeds(evaluate_file(session, session.variables(config, run.path), path))


def generate(session: Session, config: ConfigDict, run: Run, prompt: str) -> Iterator[str]:
    """What the first seed writes after a prompt, as `config.generate` says."""
    prompts.require_usable(config.generate)
    return prompts.generate(session, config, session.variables(config, run.path)[0], prompt)


def describe(config: ConfigDict) -> Description:
    """Shapes of the parameters and of one step, with `config.data.vocabulary` tokens."""
    return Session(config, None, OPENERS).description


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    require_keys("evaluate", config.evaluate, EVALUATED)
    require_keys("generate", config.generate, GENERATED)
    require_keys("statistics", config.statistics, heads.KEYS)
    check_training(config)
    check_usable(Session(config, None, OPENERS))


def check_usable(session: Session) -> None:
    """Raise UserError for values of the data, the model, and what it writes that cannot be used."""
    session.check()
    prompts.require_usable(session.config.generate)
    heads.require_usable(session)


def figures(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """Learning curves, and what the first seed's heads do with held-out text."""
    del session, result
    folder, found = run.subfolder("figures"), heads.read_statistics(run.own)
    drawn = [learning_curves(run.metrics(), folder / "learning.png")]
    return [*drawn, heads_figure(found, folder / "heads.png", config.seeds[0])] if found else drawn


def tables(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """The result, what the model writes, and what it was trained on."""
    del session
    shown = [result_table(flatten(result)), text_table(result["data"]["splits"])]
    samples = prompts.read_samples(run.own)
    return [*shown, samples_table(samples, config.seeds[0])] if samples else shown


EXPERIMENT = Experiment(
    open=functools.partial(Session, openers=OPENERS),
    together=together,
    evaluate=evaluate,
    evaluate_text=evaluate_text,
    generate=generate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    identify=lambda config: identify(config.data),
    opened=OpenedLanguageModel,
    flops=lambda session: session.cost["flops"],
    conclude=conclude,
    compared_by=("validation.perplexity_per_word", "validation.bits_per_byte"),
)
