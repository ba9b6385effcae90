"""What experiments that train step by step share."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from attention_jax.runs.experiment import Description
from attention_jax.runs.folder import Run
from attention_jax.runs.training import hyper_of, plan_of
from attention_jax.training.loop import abstract_states
from attention_jax.training.state import Variables
from attention_jax.training.step import Loss, train_step


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
    rule, hyper = plan_of(config).rule, hyper_of(config, 0)
    del hyper["seed"]
    (state,) = abstract_states(init, rule.optimizer, 1)
    step = functools.partial(train_step, loss, rule)
    return Description(state.variables["params"], step, (state, batch, {**hyper, **more}))


def pace(run: Run, config: ConfigDict) -> dict[str, float]:
    """What a seed's training takes: its seconds, those of a step (the median over what was logged), and its speed.

    They are of training steps alone: no compilation, no evaluation, nothing that a kill lost. Nothing where no step was
    timed.
    """
    seconds, steps, tokens = [], [], 0.0
    for seed in config.seeds:
        before = 0
        for line in (line for line in run.metrics() if line["seed"] == seed):
            tokens += line["train.tokens"]
            if "train.step_seconds" in line:
                seconds.append(line["train.step_seconds"])
                steps.append(line["step"] - before)
            before = line["step"]
    if not seconds:
        return {}
    whole = config.train.steps * float(np.average(seconds, weights=steps))
    speed = tokens / len(config.seeds) / whole
    return {"seconds": whole, "step_seconds": float(np.median(seconds)), "tokens_per_second": speed}
