"""Regression in context: what is measured of a model beside the estimators, on the same draws."""

import jax
import numpy as np
import pytest
from support import compiled

from attention_jax.errors import UserError
from attention_jax.ops.regression import ridge
from attention_jax.tasks.in_context.session import Session
from configs import kernel_regression


def config_of(**changes):
    config = kernel_regression.get_config("in_context_smoke")
    config.evaluate.update(estimators=("ridge",), pairs=(), examples=30, choosing=10)
    config.update_from_flattened_dict(changes)
    return config


@pytest.fixture(scope="module")
def session():
    return Session(config_of(), None)


@pytest.fixture(scope="module")
def variables(session):
    return jax.jit(session.init)(jax.random.key(0))


def test_estimators_answer_the_query_of_the_prompt_from_its_pairs(session):
    vectors, _, found = session.held_out["4"]
    keys, values, queries = vectors[:, 0:8:2, :2], vectors[:, 1::2, 2:3], vectors[:, 8:, :2]
    penalties = [0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
    apart = [np.abs(ridge(queries, keys, values, penalty)[:, 0, 0] - found["ridge"]).max() for penalty in penalties]
    assert min(apart) < 1e-4


def test_errors_are_distances_to_the_truth_and_those_to_estimators_are_to_their_answers(session, variables):
    vectors, truth, found = jax.device_get(session.held_out["4"])
    answers = np.asarray(compiled(session.model)(variables, vectors), np.float64)[:, -1, 0]
    assert session.errors(variables)["4"] == pytest.approx(np.mean((answers - truth) ** 2), rel=1e-4)
    assert session.distances(variables)["ridge"]["4"] == pytest.approx(
        np.mean((answers - found["ridge"]) ** 2), rel=1e-4
    )
    expected = np.mean((found["ridge"] - truth) ** 2)
    assert session.of_estimators["ridge"]["4"]["mse_mean"] == pytest.approx(expected, rel=1e-4)


def test_the_loss_is_the_squared_error_of_every_answer_of_prompts_that_a_step_draws(session, variables):
    hyper = {"key": jax.random.key(7)}
    loss = jax.jit(lambda step: session.loss(variables, {"step": step}, None, hyper)[0])
    sums = [loss(np.full((1, 1), step)) for step in (3, 3, 4)]
    data = session.config.data
    assert sums[0].count == data.batch * (data.pairs + 1)
    assert sums[0].total == sums[1].total != sums[2].total


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"evaluate.pairs": (2, 8)},
            r"config.evaluate.pairs=\(2, 8\): needs 1 or more each, up to config.data.pairs=4",
        ),
        ({"evaluate.examples": 1}, r"config.evaluate.examples=1: needs 2 or more"),
        ({"evaluate.estimators": ("lasso",)}, r"config.evaluate.estimators: no estimator 'lasso'"),
        ({"model.max_length": 4}, r"config.model.positions='learned': .*4"),
        ({"model.score": "location:longest=8"}, r"config.model.score='location:longest=8': has room for 8 tokens, not"),
        ({"model.heads": 3}, r"config.model.heads=3: must divide width="),
        ({"train.accumulate": 2}, r"config.train.accumulate=2: prompts are drawn inside a step. Set it 1"),
        ({"optimizer.label_smoothing": 0.1}, r"config.optimizer.label_smoothing=0.1: answers are numbers, not"),
    ],
)
def test_values_that_cannot_be_used_are_refused_by_key(changes, message):
    with pytest.raises(UserError, match=message):
        Session(config_of(**changes), None).check()


@pytest.mark.parametrize("backend", ["chunked", "flex"])
def test_a_model_needs_the_same_however_it_is_computed_and_no_product_in_a_kernel_is_lost(session, backend):
    other = Session(config_of(**{"model.backend": backend}), None)
    assert other.description.needed() == session.description.needed() < session.description.flops
    assert other.description.flops >= session.description.flops
