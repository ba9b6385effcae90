"""A language model as the training loop needs it."""

import functools

import flax.traverse_util

from attention_jax.backends import require_mark
from attention_jax.errors import UserError
from attention_jax.tasks.language_model.session import Session
from attention_jax.training.loop import AVERAGED, Task
from attention_jax.training.state import Variables


def task_of(session: Session) -> Task:
    """What the training loop needs. The metrics of a seed during training are by their full names.

    Raises UserError for a `config.train.best_by` that is not among them.
    """
    _require_best_by(session)

    def evaluate(variables: Variables) -> dict[str, float]:
        return flax.traverse_util.flatten_dict(session.measure_so_far(variables, session.config), sep=".")

    return Task(
        init=session.init,
        loss=session.loss,
        batches=session.source.batches,
        steps_per_epoch=session.source.steps_per_epoch,
        evaluate=evaluate,
        vocabulary=session.source.tokenizer_digest,
        placement=session.placement,
        lines=session.lines,
        flops=session.model_flops,
        inspect=functools.partial(require_mark, session.model.backend),
    )


def _require_best_by(session: Session) -> None:
    measured, train = session.source.measured, session.config.train
    of = (*measured, "train")
    if train.ema:
        of += tuple(f"{AVERAGED}{name}" for name in measured)
    if not train.best_by.startswith(tuple(f"{name}." for name in of)):
        choices = ", ".join(("train.loss", *(f"{name}.loss" for name in of if name.endswith("validation"))))
        raise UserError(
            f"config.train.best_by={train.best_by!r}: is not measured in training. Choose one of {choices}."
        )
