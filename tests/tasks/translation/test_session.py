"""A session's cost is that of its steps, and what it makes outlives whoever asked first."""

import collections
import functools

import jax
import jax.numpy as jnp
import pytest

from attention_jax.data.batching import TrainingBatches, split_buckets
from attention_jax.ops.dropout import Dropout
from attention_jax.tasks.translation.model import init, loss
from attention_jax.tasks.translation.session import Session
from attention_jax.training.cost import flops
from configs.nmt import get_config


def test_the_cost_of_a_run_is_that_of_its_steps_one_by_one(tmp_path):
    config = get_config("bahdanau,embedded")
    config.model.kwargs.update(embedding=8, hidden=8, layers=1)
    session = Session(config, tmp_path / "data")
    buckets = split_buckets(session.corpus.splits["train"], config.data.batch_tokens)
    batches = TrainingBatches(buckets, 1)
    config.train.steps = 2 * batches.steps_per_epoch
    steps = collections.Counter(batches.take(0, step, step + 1).bucket for step in range(config.train.steps))
    spent = sum(count * step_flops(session.programs.model, buckets[index]) for index, count in steps.items())
    assert session.cost["flops"] == pytest.approx(spent, rel=1e-9)


def test_what_a_session_makes_is_no_part_of_a_trace_that_first_asks_for_it(tmp_path):
    config = get_config("bahdanau,embedded")
    config.model.kwargs.update(embedding=8, hidden=8, layers=1)
    config.evaluate.temperature = 1.5  # draws with a key that the programs hold
    session = Session(config, tmp_path / "data")
    variables = jax.jit(session.init)(jax.random.key(0))
    words = jnp.array([[4, 5, 2, 0]])
    tokens = session.programs.translate((variables,), {"source": words, "index": jnp.arange(1)})
    assert tokens.shape[0] == 1


def test_a_search_with_more_beams_gives_one_translation_whatever_is_asked_of_lines(tmp_path):
    config = get_config("bahdanau,embedded")
    config.model.kwargs.update(embedding=8, hidden=8, layers=1)
    config.evaluate.update(beams=10, n_best=10, test_beams=5)
    session = Session(config, tmp_path / "data")
    assert (session.programs.beams, session.searching.beams) == (10, 5)


def step_flops(model, bucket):
    variables = jax.eval_shape(functools.partial(init, model), jax.random.key(0))
    batch = dict.fromkeys(("source", "target"), jnp.zeros((bucket.batch_size, bucket.length), jnp.int32))

    def of_params(params):
        return loss(model, variables | {"params": params}, batch, Dropout(jax.random.key(1), 0.1), 0.1)[0].total

    return flops(jax.grad(of_params), variables["params"])
