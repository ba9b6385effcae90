"""A model small enough to follow, for the tests of the training loop."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import stopping
from attention_jax.evaluation.metrics import metric
from attention_jax.ops.losses import squared_error
from attention_jax.training.checkpoints import Checkpoints
from attention_jax.training.clock import Clock
from attention_jax.training.feeding import Batches
from attention_jax.training.hyper import traced
from attention_jax.training.loop import Hooks, Task, Timetable, fit, trainer
from attention_jax.training.optimizer import OPTIMIZERS, Rule
from attention_jax.training.step import PLAIN

X = jax.random.normal(jax.random.key(0), (40, 3))
Y = X @ jnp.array([[1.0], [-2.0], [0.5]])
TABLE = {"x": X, "y": Y}
RULE = Rule("adam", "constant")
TIMETABLE = Timetable(
    steps=30,
    steps_per_call=4,
    log_every=10,
    evaluate_every=6,
    checkpoint_every=5,
    checkpoint_minutes=0,
    keep_last=2,
    best_by="validation.loss",
    height=metric("validation.loss").height,
)

SELDOM = TIMETABLE._replace(evaluate_every=15, checkpoint_every=15)  # of tests of several runs: to save takes longest


def hyper(seed, learning_rate=0.05, optimizer="adam"):
    numbers = {"learning_rate": learning_rate, "warmup_steps": 0, "clip_norm": 10, "weight_decay": 0, "dropout": 0}
    own = {name: number.default for name, number in OPTIMIZERS[optimizer].numbers.items()}
    return traced(numbers | own) | {"seed": seed, "key": jax.random.key(seed)}


def loss(variables, batch, dropout, hyper):
    noise = 0.01 * jax.random.normal(dropout.key, batch["y"].shape)  # a step's own randomness
    return squared_error(batch["x"] @ variables["params"]["w"], batch["y"] + noise), {}


def batches(seed, step, stop):
    steps = min(stop - step, 4, 10 - step % 10)
    rows = [np.random.default_rng((seed, step + i)).integers(0, 40, 8) for i in range(steps)]
    return Batches(np.array(rows, np.int32), TABLE)


def evaluate(variables):
    return {"validation.loss": float(jnp.mean((X @ variables["params"]["w"] - Y) ** 2))}


TASK = Task(
    init=lambda key: {"params": {"w": jax.random.normal(key, (3, 1))}},
    loss=loss,
    batches=batches,
    steps_per_epoch=10,
    evaluate=evaluate,
)


def run(
    folder,
    seeds=(0,),
    timetable=TIMETABLE,
    stop_after=None,
    task=TASK,
    rate=0.05,
    how="loop",
    until=None,
    rule=RULE,
    stepping=PLAIN,
):
    lines, done = [], [0]

    def advance(steps, items, loss):
        done[0] += steps

    def log(step, member, values):
        lines.append((step, seeds[member], {k: v for k, v in values.items() if k not in TIMED}))

    hooks = Hooks(
        log=log,
        advance=advance,
        on_not_finite=lambda member, step: lines.append((step, seeds[member], "not finite")),
        clock=Clock(),
    )
    rates = rate if isinstance(rate, tuple) else (rate,) * len(seeds)
    trained = trainer(task, timetable, rule, stepping, how)
    best = [folder / "best" / str(seed) for seed in seeds]
    checkpoints = Checkpoints(folder, timetable.keep_last, tell=lines.append, best=best)
    restored = checkpoints.restore(trained.abstract(len(seeds)))
    states = restored[1] if restored else trained.create(seeds)
    hypers = [hyper(*member, rule.optimizer) for member in zip(seeds, rates, strict=True)]
    with mock.patch.object(stopping, "asked", side_effect=lambda: stop_after is not None and done[0] >= stop_after):
        states = fit(trained, hypers, states, checkpoints, hooks, until)
    checkpoints.close()
    return states, lines


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(one), jax.device_get(other))


TIMED = ("train.step_seconds", "train.tokens_per_second")
