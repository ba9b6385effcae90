"""Watched training takes the steps that it would take unwatched, and says what made a failing one fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from attention_jax.errors import UserError
from attention_jax.ops.losses import Sums
from attention_jax.training.hyper import traced
from attention_jax.training.loop import Task, Timetable, trainer
from attention_jax.training.optimizer import Rule
from attention_jax.training.placement import place
from attention_jax.training.replay import watched

SHARED = {"learning_rate": 0.01, "warmup_steps": 0, "clip_norm": 1, "weight_decay": 0, "dropout": 0}
HYPER = traced(SHARED | {"b1": 0.9, "b2": 0.9, "eps": 1e-8})
TIMETABLE = Timetable(4, 4, 4, 4, 4, 0, 1, "train.loss", float)
ROWS = np.arange(12, dtype=np.int32).reshape(4, 3)


def loss(variables, batch, dropout, hyper):
    distance = jnp.log(batch["x"] - variables["params"]["w"])  # no logarithm where w is larger
    return Sums(jnp.sum(jnp.square(distance)), jnp.float32(distance.size)), {}


def advanced(seeds, x, watch):
    task = Task(lambda key: {"params": {"w": jnp.zeros((1, 1))}}, loss, None, 4, None)
    trained = trainer(task, TIMETABLE, Rule("adam", "constant"))
    mesh = trained.population.mesh(1)
    population = watched(trained, seeds).population if watch else trained.population
    states = trained.create(seeds)
    hypers = [{**HYPER, "key": jax.random.key(seed)} for seed in seeds]
    tables = [place({"x": column[:, None]}, mesh, PartitionSpec()) for column in x]
    return population.advance(states, tables, [ROWS] * len(seeds), np.int32(4), hypers)


def test_watched_steps_are_those_of_training_alone():
    x = [np.linspace(2.0, 3.0, 12, dtype=np.float32)] * 2
    for one, other in zip(advanced((0, 1), x, True), advanced((0, 1), x, False), strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_the_failing_step_and_its_seed_are_named():
    good = np.linspace(2.0, 3.0, 12, dtype=np.float32)
    bad = good.copy()
    bad[7] = -1.0  # the third step's
    with pytest.raises(UserError, match=r"seed 5, step 3: the loss is not finite; the first NaN is made by log \(.*\)"):
        advanced((4, 5), [good, bad], True)


def test_where_nothing_is_trained_step_by_step_there_is_nothing_to_watch():
    with pytest.raises(UserError, match="trains nothing step by step"):
        watched(None, (0,))
