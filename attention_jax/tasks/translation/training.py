"""Translation as the training loop needs it: batches of pairs, the loss, and metrics during training."""

import functools
from collections.abc import Iterator
from typing import Any

import flax.traverse_util
import numpy as np

from attention_jax.backends import require_mark
from attention_jax.data.batching import NO_ROW, TrainingBatches, split_buckets
from attention_jax.errors import UserError
from attention_jax.tasks.translation.measuring import measure_split, training_nll
from attention_jax.tasks.translation.model import model_flops, training_loss
from attention_jax.tasks.translation.session import Session
from attention_jax.tasks.translation.translating import Trained, calls
from attention_jax.training.feeding import Batches
from attention_jax.training.loop import AVERAGED, Task

BEST_BY = ("validation.bleu", "validation.loss", "train.nll", "train.loss")


def task_of(session: Session) -> Task:
    """What the training loop needs; the compiled step gathers its batch from a table, by row."""
    _require_best_by(session)
    data, steps_per_call = session.data, session.config.train.steps_per_call
    buckets = split_buckets(session.corpus.splits["train"], data.batch_tokens)
    tables = [bucket.rows(np.arange(len(bucket.pairs))) for bucket in buckets] if data.on_device else []
    ordered = TrainingBatches(buckets, steps_per_call)

    def batches(seed, step, stop):
        steps = ordered.take(seed, step, stop)
        return of_bucket(steps.bucket, steps.rows)

    def of_bucket(index, rows):
        return Batches(rows, tables[index]) if data.on_device else Batches(rows, read=buckets[index].rows)

    def ahead(step, stop):
        of_step = ((index, (1, buckets[index].batch_size)) for index in ordered.ahead(step, stop))
        return [of_bucket(index, np.full(shape, NO_ROW, np.int32)) for index, shape in of_step]

    return Task(
        init=session.init,
        loss=training_loss(session.programs.model),
        batches=batches,
        steps_per_epoch=ordered.steps_per_epoch,
        evaluate=lambda variables: measure_so_far(session, variables),
        vocabulary=session.corpus.vocabulary,
        placement=session.placement,
        flops=lambda batch: model_flops(session.config, session.programs.model, *batch["source"].shape),
        ahead=ahead,
        rehearsed=functools.partial(rehearsed, session),
        inspect=functools.partial(require_mark, session.programs.model.backend),
    )


def measure_so_far(session: Session, variables: Any) -> dict[str, float]:
    """The metrics during training, by their full names, of training pairs and of the validation split."""
    trained = Trained(session.programs, (variables,), session.corpus, session.data)
    numbers: dict[str, dict] = {"train": {"nll": training_nll(trained)}}
    if "validation" in session.corpus.splits:
        numbers["validation"] = measure_split(trained, session.corpus.splits["validation"], session.config).numbers
    flat = flax.traverse_util.flatten_dict(numbers, sep=".")
    return {name: value for name, value in flat.items() if isinstance(value, (int, float))}


def rehearsed(session: Session, variables: Any) -> Iterator[tuple]:
    """The programs that measure variables of these shapes, each with arguments, in the order of their first calls."""
    trained, splits = Trained(session.programs, (variables,), session.corpus, session.data), session.corpus.splits
    if "validation" in splits:
        pairs = splits["validation"].source, splits["validation"].target
        for program in (trained.programs.loss, trained.programs.translate, trained.programs.alignment):
            is_search = program is trained.programs.translate
            yield from calls(trained, program, *pairs, beams=trained.programs.beams if is_search else 1)
    if session.config.evaluate.test_beams and "test" in splits:
        searching, source = session.searching, splits["test"].source
        yield from calls(trained, searching.translate, source, source, beams=searching.beams)


def _require_best_by(session: Session) -> None:
    splits, best_by = session.corpus.splits, session.config.train.best_by
    choices = [name for name in BEST_BY if name.partition(".")[0] in splits]
    if session.config.train.ema:
        choices += [f"{AVERAGED}{name}" for name in choices if name != "train.loss"]
    if best_by not in choices:
        raise UserError(f"config.train.best_by={best_by!r}: choose one of {', '.join(choices)}.")
