"""Translation: any encoder–decoder on any corpus of sentence pairs."""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.batching import Batches, gather_on_host, split_buckets
from attention_jax.data.config import DataConfig
from attention_jax.data.corpus import Corpus, Reference, load_references
from attention_jax.data.importing import export_to_tfds, identify, load_or_import
from attention_jax.data.tokenizers import split_words
from attention_jax.errors import UserError
from attention_jax.evaluation.statistics import over_seeds
from attention_jax.evaluation.translation import book_scores
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table
from attention_jax.reports.translation import (
    data_table,
    learning_figures,
    length_figure,
    result_table,
    translation_table,
)
from attention_jax.runs.experiment import Description, Experiment, Together
from attention_jax.runs.folder import Run, read_config
from attention_jax.runs.training import best_variables, last_variables, plan_of
from attention_jax.sweeps.cells import flatten
from attention_jax.training.cost import flops
from attention_jax.training.loop import Task, trainer
from attention_jax.training.state import Variables, mean
from experiments._by_length import conclude
from experiments._common import check_training, description_of, pace
from experiments._lines import translate_lines
from experiments._outputs import SHOWN_TRANSLATIONS, attention_examples, write_outputs
from experiments._translator import (
    Members,
    Trained,
    Translator,
    bleu_tokens,
    build,
    init,
    loss,
    measure_split,
    split_of_files,
    training_nll,
    translate_texts,
    translator,
)

BEST_BY = ("validation.bleu", "validation.loss", "train.nll", "train.loss")
HELD_OUT = ("validation", "test")

# What translates, for each seed: its best variables; the last checkpoints' mean, or all of them together; or the best
# of all seeds together.
COMBINE: dict[str, Callable[..., list[Members]]] = {
    "best": lambda last, *saved: [(best,) for best in best_variables(*saved)],
    "average": lambda last, *saved: [(mean(found),) for found in last_variables(last, *saved)],
    "ensemble": lambda last, *saved: [tuple(found) for found in last_variables(last, *saved)],
    "seeds": lambda last, *saved: [tuple(best_variables(*saved))],
}

OF_SEVERAL = ("average", "ensemble")  # checkpoints of one seed


def task(config: ConfigDict, corpus: Corpus, programs: Translator) -> Task:
    """What the training loop needs; a batch is gathered by row inside the compiled step."""
    choices = [name for name in BEST_BY if name.partition(".")[0] in corpus.splits]
    if config.train.best_by not in choices:
        raise UserError(f"config.train.best_by={config.train.best_by!r}: choose one of {', '.join(choices)}.")
    data = DataConfig(**config.data)
    buckets = split_buckets(corpus.splits["train"], data.batch_tokens)
    tables = (
        jax.device_put([bucket.rows(np.arange(len(bucket.places))) for bucket in buckets]) if data.on_device else []
    )
    batches = Batches(buckets, config.train.steps_per_call)

    def call(seed, step, stop):
        chosen = batches.call(seed, step, stop)
        if data.on_device:
            return tables[chosen.bucket], chosen.rows
        return gather_on_host(buckets[chosen.bucket], chosen.rows, config.train.steps_per_call)

    def measure_so_far(variables):
        trained = Trained(programs, (variables,), corpus, data)
        found: dict[str, dict] = {"train": {"nll": training_nll(trained)}}
        if "validation" in corpus.splits:
            found["validation"] = measure_split(trained, corpus.splits["validation"], config).numbers
        return _numbers(found)

    return Task(
        init=functools.partial(init, programs.model),
        loss=_training_loss(programs.model),
        call=call,
        steps_per_epoch=batches.steps_per_epoch,
        evaluate=measure_so_far,
        is_table_shared=data.on_device,
        vocabulary=corpus.vocabulary,
    )


def together(config: ConfigDict, folder: Path, how: str) -> Together:
    """What runs with this config's model and data share: the corpus in `folder`, and every program."""
    plan = plan_of(config)
    if config.evaluate.examples < 1:
        raise UserError(f"config.evaluate.examples={config.evaluate.examples}: needs 1 or more.")
    bleu_tokens(config)  # what cannot be counted is refused before any work
    corpus, programs = open_corpus(config, folder)
    _tell_import(corpus)
    job = task(config, corpus, programs)
    cost, epoch = _cost(config, corpus, programs), job.steps_per_epoch

    def finish(configs, runs):
        return [_finish(*cell, corpus, programs, cost, epoch) for cell in zip(configs, runs, strict=True)]

    return Together(
        finish=finish,
        trainer=trainer(job, plan, how),
        start_from=functools.partial(_start_from, config, programs, corpus.vocabulary),
    )


def _finish(config: ConfigDict, run: Run, corpus: Corpus, programs: Translator, cost: dict, epoch: int) -> dict:
    """Measure every seed of a trained run, and what it cost; the training loss is the last epoch's."""
    last_epoch = (config.train.steps - 1) // epoch * epoch
    losses = [run.mean_over_steps("train.loss", seed, after=last_epoch) for seed in config.seeds]
    every = _trained(config, run, corpus, programs)
    found = [measure(config, run, trained) for trained in every]
    write_outputs(config, run, every[0], [outputs for _, outputs in found])
    measured = [numbers for numbers, _ in found]
    if len(measured) == len(losses):
        measured = [
            {**member, "train": {"loss": value, **member["train"]}}
            for value, member in zip(losses, measured, strict=True)
        ]
    data = {name: value for name, value in corpus.meta.items() if name != "digests"}  # `fingerprint` stands for them
    return over_seeds(measured) | {"cost": cost | pace(run, config), "data": data}


def evaluate(config: ConfigDict, run: Run) -> dict:
    """Measure a trained run again, as `config.evaluate` says."""
    return over_seeds([measure(config, run, trained)[0] for trained in open_trained(config, run)])


def evaluate_files(config: ConfigDict, run: Run, sources: Sequence[str], targets: Sequence[str]) -> dict:
    """Measure a trained run on sentences and their translations that it need not know."""
    every = open_trained(config, run)
    splits = [split_of_files(trained, sources, targets) for trained in every]
    measured = [measure_split(trained, split, config) for trained, split in zip(every, splits, strict=True)]
    return over_seeds([found.numbers for found in measured])


def measure(config: ConfigDict, run: Run, trained: Trained) -> tuple[dict, dict[str, list[str]]]:
    """Every figure of one seed: training, validation and test, and the textbook's sentences where the config has them.

    And the translations of each split.
    """
    names: list[str] = [name for name in HELD_OUT if name in trained.corpus.splits]
    measured = {name: measure_split(trained, trained.corpus.splits[name], config) for name in names}
    found: dict[str, dict] = {"train": {"nll": training_nll(trained)}}
    found |= {name: split.numbers for name, split in measured.items()}
    if config.evaluate.book_sentences:
        known = _book_references((run.path / "data").resolve(), config.evaluate.book_sentences)
        references = {
            sentence: [split_words(text) for text in reference.targets] for sentence, reference in known.items()
        }
        outputs = translate_texts(trained, [reference.source for reference in known.values()])
        found["book"] = book_scores(dict(zip(known, map(split_words, outputs), strict=True)), references)
    return found, {name: split.hypotheses for name, split in measured.items()}


@functools.lru_cache(maxsize=1)
def _book_references(folder: Path, named: Sequence[str]) -> dict[str, Reference]:
    """The named sentences that the corpus has, in their order, whichever split they are in; runs share its reading."""
    sentences = [" ".join(split_words(sentence)) for sentence in named]
    known = {" ".join(split_words(found.source)): found for found in load_references(folder, sentences)}
    return {sentence: known[sentence] for sentence in sentences if sentence in known}


def translate(config: ConfigDict, run: Run, lines: Iterator[str], attention_file: str) -> Iterator[str]:
    """The first seed's translation of every line, as `translate_lines` says."""
    return translate_lines(config, open_trained(config, run)[0], lines, attention_file)


def prepare(config: ConfigDict, path: Path) -> str:
    """The config's corpus, split as it says, as the data set of TFDS that `path` names: FOLDER/NAME."""
    data = DataConfig(**config.data)
    splits, skipped = export_to_tfds(path, data)
    _tell_skipped(skipped)
    absent = [name for name in HELD_OUT if name not in splits]
    none = [f"--config.data.{name}_path= --config.data.{name}=0" for name in absent]
    languages = f'--config.data.languages="{data.languages}"'
    return " ".join((f"--config.data.source=tfds:{path.name} --config.data.path={path.parent}", languages, *none))


def describe(config: ConfigDict) -> Description:
    """Shapes of the parameters and of one step on the largest bucket, with `config.data.vocabulary` words a side."""
    data = DataConfig(**config.data)
    model = build(config, data.vocabulary, data.vocabulary)
    return _description(config, model, max(data.batch_tokens // data.buckets[-1], 1), data.buckets[-1])


def figures(config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """Learning curves, BLEU by length, and attention on held-out sentences translated by the first seed."""
    trained, folder = open_trained(config, run)[0], run.subfolder("figures")
    drawn = [*learning_figures(run.metrics(), folder), length_figure(result, folder / "bleu_by_length.png")]
    if trained.programs.alignment is None:
        return drawn
    return [*drawn, attention_examples(config, trained, folder / "attention.png")]


def tables(config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """The result, what it is of, and translations beside their references."""
    corpus, _ = open_corpus(config, run.path / "data")
    flat = {name: value for name, value in flatten(result).items() if not name.startswith(("ci95.", "data."))}
    shown = [result_table(flat, flatten(result.get("ci95", {}))), data_table(corpus.meta)]
    for name in HELD_OUT:
        if name in corpus.splits:
            references = corpus.splits[name].references[:SHOWN_TRANSLATIONS]
            hypotheses = (run.path / f"predictions.{name}.txt").read_text(encoding="utf-8").split("\n")
            sources, targets = [r.source for r in references], [r.targets for r in references]
            shown.append(translation_table(name, sources, hypotheses[: len(references)], targets))
    return shown


def open_corpus(config: ConfigDict, folder: Path) -> tuple[Corpus, Translator]:
    """The corpus in a folder, imported at first, and the model's programs."""
    _require_combination(config)
    data = DataConfig(**config.data)
    vocabularies = Path(config.train.init_from) / "data" if config.train.init_from else None
    corpus = load_or_import(folder, data, vocabularies)
    model = build(config, corpus.source.size, corpus.target.size)
    _require_mean(config, model)
    return corpus, translator(model, config)


def _start_from(config: ConfigDict, programs: Translator, vocabulary: str) -> Variables | None:
    if not config.train.init_from:
        return None
    path = Path(config.train.init_from)
    other = read_config(path)
    if other is None:
        raise UserError(f"config.train.init_from={config.train.init_from!r}: no run there.")
    if other.model != config.model:
        raise UserError(f"config.train.init_from={config.train.init_from!r}: its config.model is another one.")
    return best_variables(other, Run(path, 0.0), functools.partial(init, programs.model), vocabulary)[0]


def open_trained(config: ConfigDict, run: Run) -> list[Trained]:
    """What translates in a trained run, for each seed: as `config.evaluate` says."""
    return _trained(config, run, *open_corpus(config, run.path / "data"))


def _require_combination(config: ConfigDict) -> None:
    combine, last, kept = config.evaluate.combine, config.evaluate.last, config.train.keep_last
    if combine not in COMBINE:
        raise UserError(f"config.evaluate.combine={combine!r}: choose one of {', '.join(COMBINE)}.")
    most = min(kept, -(-config.train.steps // config.train.checkpoint_every))
    if not 1 <= last <= most:
        raise UserError(
            f"config.evaluate.last={last}: needs 1 to {most}, the checkpoints there will be (config.train.keep_last, "
            "config.train.checkpoint_every)."
        )
    if last > 1 and combine not in OF_SEVERAL:
        raise UserError(f"config.evaluate.last={last}: is for config.evaluate.combine={' or '.join(OF_SEVERAL)}.")


def _require_mean(config: ConfigDict, model: nn.Module) -> None:
    """A batch norm's moments are of one checkpoint's parameters, not of their mean (Izmailov et al. 2018, §3.2)."""
    if config.evaluate.combine != "average":
        return
    if "batch_stats" in jax.eval_shape(functools.partial(init, model), jax.random.key(0)):
        raise UserError(
            "config.evaluate.combine='average': the mean of checkpoints has no batch norm's moments of its own; choose "
            "ensemble, or train with config.model.kwargs.norm=layer."
        )


def _trained(config: ConfigDict, run: Run, corpus: Corpus, programs: Translator) -> list[Trained]:
    start = functools.partial(init, programs.model)
    every = COMBINE[config.evaluate.combine](config.evaluate.last, config, run, start, corpus.vocabulary)
    return [Trained(programs, members, corpus, DataConfig(**config.data)) for members in every]


def _cost(config: ConfigDict, corpus: Corpus, programs: Translator) -> dict:
    """Parameters, and the matrix-product FLOPs of one seed's whole training."""
    buckets = split_buckets(corpus.splits["train"], config.data.batch_tokens)
    steps = config.train.steps / sum(bucket.num_batches for bucket in buckets)
    total = 0.0
    for bucket in buckets:
        description = _description(config, programs.model, bucket.batch_size, bucket.length)
        total += flops(description.step, *description.arguments) * bucket.num_batches * steps
    return {"parameters": sum(leaf.size for leaf in jax.tree.leaves(description.parameters)), "flops": total}


def _description(config: ConfigDict, model: nn.Module, rows: int, length: int) -> Description:
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    batch = {"source": tokens, "target": tokens}
    return description_of(config, functools.partial(init, model), _training_loss(model), batch)


def _training_loss(model: nn.Module):
    def training_loss(variables, batch, dropout, hyper):
        return loss(model, variables, batch, dropout, hyper["label_smoothing"])

    return training_loss


def _numbers(tree: dict) -> dict[str, float]:
    return {name: value for name, value in flatten(tree).items() if isinstance(value, (int, float))}


def _tell_import(corpus: Corpus) -> None:
    meta = corpus.meta
    counts = ", ".join(f"{count:,} {name}" for name, count in meta["pairs"].items())
    print(f"pairs: {counts}; vocabulary: {meta['vocabulary'][0]:,} and {meta['vocabulary'][1]:,}", file=sys.stderr)
    _tell_skipped(meta)
    if meta["too_long"]["pairs"]:
        what = {"truncate": "truncated", "skip": "skipped"}[meta["too_long"]["what"]]
        of = ", ".join(f"{count:,} {name}" for name, count in meta.get("too_long_by_split", {}).items() if count)
        told = f"{what} {meta['too_long']['pairs']:,} pairs longer than config.data.max_length"
        print(f"{told}: {of}" if of else told, file=sys.stderr)


def _tell_skipped(counts: dict) -> None:
    """What an import kept out, or found more than once; an older one did not count all of it."""
    if counts.get("left_out"):
        print(f"left out {counts['left_out']:,} training pairs whose source is in a held-out file", file=sys.stderr)
    if counts.get("in_both"):
        print(f"kept {counts['in_both']:,} test pairs whose source is in the validation file too", file=sys.stderr)
    for name, count in counts.get("repeated", {}).items():
        if count:
            print(f"kept {count:,} {name} pairs whose source their file has more than once", file=sys.stderr)
    if counts["bad_lines"]:
        first = ", ".join(counts["first_bad_lines"])
        print(f"skipped {counts['bad_lines']:,} bad lines, first {first}", file=sys.stderr)


EXPERIMENT = Experiment(
    together=together,
    evaluate=evaluate,
    evaluate_files=evaluate_files,
    describe=describe,
    figures=figures,
    tables=tables,
    translate=translate,
    prepare=prepare,
    identify=lambda config: identify(DataConfig(**config.data)),
    check=check_training,
    flops=lambda config, folder: _cost(config, *open_corpus(config, folder))["flops"],
    conclude=conclude,
    compared_by=("train.nll", "validation.perplexity_per_word", "validation.bleu"),
)
