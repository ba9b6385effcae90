"""Translation as the training loop needs it: batches of pairs, the loss, and metrics during training."""

import functools
from typing import Any

import flax.traverse_util
import numpy as np

from attention_jax.backends import require_mark
from attention_jax.data.batching import TrainingBatches, split_buckets
from attention_jax.errors import UserError
from attention_jax.tasks.translation.measuring import measure_split, training_nll
from attention_jax.tasks.translation.model import model_flops, training_loss
from attention_jax.tasks.translation.session import Session
from attention_jax.tasks.translation.translating import Trained
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
        if data.on_device:
            return Batches(steps.rows, tables[steps.bucket])
        return Batches(steps.rows, read=buckets[steps.bucket].rows)

    return Task(
        init=session.init,
        loss=training_loss(session.programs.model),
        batches=batches,
        steps_per_epoch=ordered.steps_per_epoch,
        evaluate=lambda variables: measure_so_far(session, variables),
        vocabulary=session.corpus.vocabulary,
        placement=session.placement,
        flops=lambda batch: model_flops(session.config, session.programs.model, *batch["source"].shape),
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


def _require_best_by(session: Session) -> None:
    splits, best_by = session.corpus.splits, session.config.train.best_by
    choices = [name for name in BEST_BY if name.partition(".")[0] in splits]
    if session.config.train.ema:
        choices += [f"{AVERAGED}{name}" for name in choices if name != "train.loss"]
    if best_by not in choices:
        raise UserError(f"config.train.best_by={best_by!r}: choose one of {', '.join(choices)}.")
