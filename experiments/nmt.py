"""Translation: any encoder–decoder on any corpus of sentence pairs."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.data.config import DataConfig
from attention_jax.data.importing import export_to_tfds, identify
from attention_jax.errors import UserError, require
from attention_jax.evaluation.statistics import over_seeds
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table
from attention_jax.reports.translation import (
    data_table,
    learning_curves,
    length_figure,
    result_tables,
    translation_table,
)
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run, read_config
from attention_jax.runs.keys import require_keys
from attention_jax.runs.pace import pace
from attention_jax.runs.training import check_training, trainer_of
from attention_jax.stores import here
from attention_jax.tasks.sections import tell_unread_dropout
from attention_jax.tasks.translation import model
from attention_jax.tasks.translation.by_length import conclude
from attention_jax.tasks.translation.combining import require_combination
from attention_jax.tasks.translation.lines import translate_lines
from attention_jax.tasks.translation.measuring import (
    HELD_OUT,
    bleu_tokens,
    measure,
    measure_split,
    require_room_of_held_out,
    split_of_files,
)
from attention_jax.tasks.translation.messages import tell_held_out, tell_import, tell_skipped
from attention_jax.tasks.translation.opened import OpenedTranslator
from attention_jax.tasks.translation.outputs import (
    SHOWN_TRANSLATIONS,
    attention_examples,
    read_predictions,
    write_outputs,
)
from attention_jax.tasks.translation.programs import translator
from attention_jax.tasks.translation.session import Session, open_session
from attention_jax.tasks.translation.training import task_of
from attention_jax.training.description import Description
from attention_jax.training.saved import best_variables
from attention_jax.training.state import Variables

EVALUATED = (  # keys of `config.evaluate`
    *("bleu_tokens", "combine", "last", "beams", "test_beams", "length_penalty", "n_best"),
    *("temperature", "top_k", "top_p", "seed", "alignment_layer", "examples", "book_sentences"),
)


def together(session: Session, how: str) -> Together:
    """What runs with this session's model and data share: the corpus, and every program."""
    config = session.config
    bleu_tokens(config)  # what cannot be counted is refused before any work
    require("sacrebleu")
    tell_import(session.corpus.meta)
    tell_held_out(session.corpus.meta, session.data)
    require_room_of_held_out(session.programs.model, session.data, session.corpus)
    task = task_of(session)
    return Together(
        finish=functools.partial(finish, session, task.steps_per_epoch),
        trainer=trainer_of(config, task, how),
        start_from=functools.partial(start_from, session),
    )


def start_from(session: Session) -> Variables | None:
    """The best variables of the run that `config.train.init_from` names, if it names one."""
    named = session.config.train.init_from
    if not named:
        return None
    path = here(named)
    other = read_config(path)
    if other is None:
        raise UserError(f"config.train.init_from={named!r}: no run there.")
    if other.model != session.config.model:
        raise UserError(f"config.train.init_from={named!r}: was trained with another config.model.")
    return best_variables(other, path, session.init, session.corpus.vocabulary, session.placement)[0]


def finish(session: Session, steps_per_epoch: int, configs: Sequence[ConfigDict], runs: Sequence[Run]) -> list[dict]:
    """Measure trained runs, every seed of them, and what they cost; the training loss is the last epoch's."""
    return [_finish(session, steps_per_epoch, *cell) for cell in zip(configs, runs, strict=True)]


def _finish(session: Session, steps_per_epoch: int, config: ConfigDict, run: Run) -> dict:
    last_epoch = (config.train.steps - 1) // steps_per_epoch * steps_per_epoch
    losses = [run.mean_over_steps("train.loss", seed, after=last_epoch) for seed in config.seeds]
    every = session.trained(config, run.path)
    found = [measure(session, trained) for trained in every]
    write_outputs(config, run.own, every[0], [outputs for _, outputs in found])
    results = [numbers for numbers, _ in found]
    if len(results) == len(losses):
        results = [
            {**numbers, "train": {"loss": loss, **numbers["train"]}}
            for loss, numbers in zip(losses, results, strict=True)
        ]
    data = {k: v for k, v in session.corpus.meta.items() if k != "digests"}  # `fingerprint` stands for them
    backend = session.programs.model.backend
    return over_seeds(results) | {"backend": backend, "cost": session.cost | pace(run, config), "data": data}


def evaluate(session: Session, config: ConfigDict, run: Run) -> dict:
    """Measure a trained run again, as `config.evaluate` says."""
    return over_seeds([measure(session, trained)[0] for trained in session.trained(config, run.path)])


def evaluate_files(
    session: Session, config: ConfigDict, run: Run, sources: Sequence[str], targets: Sequence[str]
) -> dict:
    """Measure a trained run on sentences and their translations that it need not know."""
    every = session.trained(config, run.path)
    splits = [split_of_files(trained, sources, targets) for trained in every]
    found = [measure_split(trained, split, config) for trained, split in zip(every, splits, strict=True)]
    return over_seeds([one.numbers for one in found])


def translate(
    session: Session, config: ConfigDict, run: Run, lines: Iterator[str], attention_file: str
) -> Iterator[str]:
    """The first seed's translation of every line, as `translate_lines` says."""
    return translate_lines(config, session.trained(config, run.path)[0], lines, attention_file)


def figures(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """Learning curves, scores by length, and attention on held-out sentences translated by the first seed."""
    folder = run.subfolder("figures")
    drawn = [learning_curves(run.metrics(), folder / "learning.png")]
    if any(name in result for name in HELD_OUT):
        drawn.append(length_figure(flatten(result), folder / "by_length.png"))
    if session.programs.alignment is None:
        return drawn
    return [*drawn, attention_examples(config, session.trained(config, run.path)[0], folder / "attention.png")]


def tables(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """The result, what it is of, and translations beside their references."""
    del config
    shown = [*result_tables(flatten(result)), data_table(session.corpus.meta)]
    for name in HELD_OUT:
        if name in session.corpus.splits:
            references = session.corpus.splits[name].references[:SHOWN_TRANSLATIONS]
            hypotheses = read_predictions(run.own, name, len(references))
            sources, targets = [r.source for r in references], [r.targets for r in references]
            shown.append(translation_table(name, sources, hypotheses, targets))
    return shown


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used: of training, of evaluation, and of the model."""
    require_keys("data", config.data, DataConfig._fields)
    require_keys("evaluate", config.evaluate, EVALUATED)
    check_training(config)
    require_combination(config)
    if config.evaluate.examples < 1:
        raise UserError(f"config.evaluate.examples={config.evaluate.examples}: needs 1 or more.")
    if config.evaluate.test_beams < 0:
        raise UserError(f"config.evaluate.test_beams={config.evaluate.test_beams}: needs 0 or more.")
    translator(model.build(config, config.data.vocabulary, config.data.vocabulary), config)
    tell_unread_dropout(config.optimizer.dropout, config.model.kwargs.dropout_sites, "config.model.kwargs")


def describe(config: ConfigDict) -> Description:
    """Shapes of the parameters and of one step on the largest bucket, with `config.data.vocabulary` words a side."""
    data = DataConfig(**config.data)
    built = model.build(config, data.vocabulary, data.vocabulary)
    return model.describe(config, built, max(data.batch_tokens // data.buckets[-1], 1), data.buckets[-1])


def prepare(config: ConfigDict, path: Path) -> str:
    """The config's corpus, split as it says, as the data set of TFDS that `path` names: FOLDER/NAME."""
    data = DataConfig(**config.data)
    splits, skipped = export_to_tfds(path, data)
    tell_skipped(skipped)
    absent = [name for name in HELD_OUT if name not in splits]
    none = [f"--config.data.{name}_path= --config.data.{name}=0" for name in absent]
    languages = f'--config.data.languages="{data.languages}"'
    return " ".join((f"--config.data.source=tfds:{path.name} --config.data.path={path.parent}", languages, *none))


EXPERIMENT = Experiment(
    open=open_session,
    together=together,
    evaluate=evaluate,
    evaluate_files=evaluate_files,
    describe=describe,
    figures=figures,
    tables=tables,
    translate=translate,
    prepare=prepare,
    identify=lambda config: identify(DataConfig(**config.data)),
    check=check,
    opened=OpenedTranslator,
    flops=lambda session: session.cost["flops"],
    conclude=conclude,
    compared_by=("train.nll", "validation.perplexity_per_word", "validation.bleu", "validation.chrf"),
)
