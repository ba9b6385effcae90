"""A language model as the training loop needs it."""

from collections.abc import Callable

from attention_jax.tasks.language_model.session import Session
from attention_jax.training.loop import Task
from attention_jax.training.state import Variables


def task_of(session: Session, evaluate: Callable[[Variables], dict[str, float]] = lambda variables: {}) -> Task:
    """What the training loop needs; `evaluate` measures a seed while training goes on, by metrics' whole names."""
    return Task(
        init=session.init,
        loss=session.loss,
        call=session.source.call,
        steps_per_epoch=session.source.steps_per_epoch,
        evaluate=evaluate,
    )
