"""What experiments that train step by step share."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from attention_jax.runs.experiment import Description
from attention_jax.runs.folder import Run
from attention_jax.runs.training import hyper_of, plan_of
from attention_jax.training.loop import abstract_states
from attention_jax.training.state import Variables
from attention_jax.training.step import Loss, train_step

DYNAMIC = (
    "seeds",
    "optimizer.learning_rate",
    "optimizer.warmup_steps",
    "optimizer.decay_steps",
    "optimizer.final_fraction",
    "optimizer.clip_norm",
    "optimizer.b2",
    "optimizer.weight_decay",
    "optimizer.dropout",
    "optimizer.label_smoothing",
)


def check_training(config: ConfigDict) -> None:
    """Raise UserError for values that no training can use."""
    plan_of(config)
    hyper_of(config, 0)


def description_of(
    config: ConfigDict,
    init: Callable[[jax.Array], Variables],
    loss: Loss,
    batch: Any,
    more: Mapping[str, Any] = {},
) -> Description:
    """One training step on a batch of shapes; `more` are dynamic values that are not the optimizer's."""
    (state,) = abstract_states(init, 1)
    hyper = {name: jnp.float32(0) for name in config.optimizer if name != "schedule"} | {"key": jax.random.key(0)}
    step = functools.partial(train_step, loss, config.optimizer.schedule)
    return Description(state.variables["params"], step, (state, batch, {**hyper, **more}))


def pace(run: Run, config: ConfigDict) -> dict[str, float]:
    """Wall time of one seed's training, its evaluations included, and counted tokens a second."""
    lines = run.metrics()
    seconds = max((line["seconds"] for line in lines), default=math.nan)  # of a run whose log is lost
    tokens = sum(line["train.tokens"] for line in lines)
    return {"seconds": seconds / len(config.seeds), "tokens_per_second": tokens / seconds}
