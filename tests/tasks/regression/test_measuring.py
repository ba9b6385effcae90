"""What is measured of estimators: their best numbers, their errors, attention's identity, the rate of features."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from attention_jax.data.functions import draw
from attention_jax.errors import UserError
from attention_jax.tasks.regression import measuring
from attention_jax.tasks.regression.choosing import best_numbers, estimates, over_draws
from attention_jax.tasks.regression.estimators import ESTIMATORS, Estimator, attention, chosen, random_features
from attention_jax.tasks.regression.measuring import check, exponent, identity, measure
from configs import kernel_regression

DRAWING = functools.partial(draw, n=6, queries=4, dimensions=2, noise=0.3)


def small(**changes):
    config = ConfigDict(kernel_regression.ATTENTION)
    config.update(draws=40, choosing=20, queries=3, estimators=("mean", "ridge"), **changes)
    config.data.n = 6
    config.vary = {"n": (6,), "noise": (0.5,), "dimensions": (2, 4)}
    return config


def test_the_numbers_of_an_estimator_are_those_of_least_error_on_the_draws_for_each_kind_of_function():
    offset = Estimator("", lambda key, q, k, v, by: jnp.zeros((len(q), v.shape[-1])) + by, ((-5.0, 0.1, 5.0),))
    keys = jax.random.split(jax.random.key(0), 30)
    found = best_numbers({"offset": offset, "mean": ESTIMATORS["mean"]}, DRAWING, keys)
    np.testing.assert_allclose(found["offset"], [[0.1], [0.1]])
    assert found["mean"].shape == (2, 0)


def test_numbers_with_which_an_estimator_diverges_are_never_its_best():
    root = Estimator("", lambda key, q, k, v, by: jnp.zeros((len(q), v.shape[-1])) + jnp.sqrt(by), ((-1.0, 9.0),))
    found = best_numbers({"root": root}, DRAWING, jax.random.split(jax.random.key(0), 3))
    np.testing.assert_array_equal(found["root"], [[9.0], [9.0]])


def test_estimates_are_made_of_each_kind_of_function_with_its_own_numbers():
    one = DRAWING(jax.random.key(0))
    numbers = jnp.array([[0.1], [10.0]])
    ridge = ESTIMATORS["ridge"]
    found = estimates({"ridge": ridge}, jax.random.key(1), one, {"ridge": numbers})["ridge"]
    for kind in range(2):
        own = ridge.apply(None, one.query, one.key, one.value[:, kind, None], *numbers[kind])
        np.testing.assert_allclose(found[:, kind], own[:, 0], rtol=1e-5)


def test_draws_are_measured_as_one_by_one_however_many_are_side_by_side(monkeypatch):
    keys = jax.random.split(jax.random.key(0), 7)
    expected = [float(jax.random.normal(key)) for key in keys]
    monkeypatch.setattr("attention_jax.tasks.regression.choosing.TOGETHER", 3)
    np.testing.assert_allclose(over_draws(jax.random.normal, keys), expected, rtol=1e-6)


def test_errors_are_those_of_a_float64_loop_on_the_same_draws(monkeypatch):
    config = small()
    for other in ("identity", "features"):
        monkeypatch.setattr(measuring, other, lambda config: {})
    found = measure(config)
    assert {(row["varies"], row["value"]) for row in found["errors"]} == {
        *(("n", 6), ("noise", 0.5), ("dimensions", 2), ("dimensions", 4))
    }
    keys = jax.random.split(jax.random.fold_in(jax.random.key(0), 0), config.draws)
    one = functools.partial(draw, n=6, queries=3, dimensions=4, noise=0.5)
    draws = jax.jit(jax.vmap(lambda key: one(jax.random.split(key)[0])))(keys)
    values, truth = (np.asarray(array, np.float64) for array in (draws.value, draws.truth))
    squared = [np.mean((y.mean(axis=0) - f) ** 2, axis=0) for y, f in zip(values, truth, strict=True)]
    for kind, expected in zip(("linear", "smooth"), np.mean(squared, axis=0), strict=True):
        here = [
            row for row in found["errors"] if (row["value"], row["function"], row["estimator"]) == (4, kind, "mean")
        ]
        for row in (*here, found["estimators"][kind]["mean"]):
            assert row["mse_mean"] == pytest.approx(expected, rel=1e-4)


def test_attention_is_kernel_regression_to_rounding_at_every_width():
    found = identity(small())
    assert max(found["gaussian"] + found["dot"]) < 1e-3
    assert found["gaussian"][-1] < 1e-5


def test_an_exponent_is_found_with_its_interval(random):
    counts = [4, 16, 64]
    squared = np.array([np.abs(random.normal(size=400)) / count for count in counts])
    found = exponent(counts, squared)
    assert found["low"] < -0.5 < found["high"]
    assert found["high"] - found["low"] < 0.1


def test_random_features_come_nearer_to_attention_the_more_there_are():
    one = DRAWING(jax.random.key(0))
    asked = one.query, one.key, one.value, 2.0
    exact = attention(None, *asked)
    keys = jax.random.split(jax.random.key(1), 8)
    near = {
        count: np.square(
            jax.jit(jax.vmap(lambda key, m=count: random_features(key, *asked, count=m) - exact))(keys)
        ).mean()
        for count in (8, 512)
    }
    assert near[512] < near[8] / 16


def test_random_features_of_widths_that_no_product_survives_give_the_mean():
    one = DRAWING(jax.random.key(0))
    found = random_features(jax.random.key(1), one.query, one.key, one.value, 1e-3)
    np.testing.assert_allclose(found, jnp.broadcast_to(one.value.mean(axis=0), found.shape), rtol=1e-5)


def test_every_estimator_of_the_config_is_one_and_every_one_is_in_the_config():
    assert set(chosen(kernel_regression.ATTENTION["estimators"])) == set(ESTIMATORS)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("estimators", ("ridge", "lasso"), r"config.estimators: no estimator 'lasso': choose of mean, "),
        ("estimators", (), r"config.estimators=\(\): choose of mean, "),
        ("draws", 1, r"config.draws=1: needs 2 or more"),
        ("data.noise", -0.5, r"config.data.noise=-0.5: needs 0 or more"),
        ("vary.n", (8, 1), r"config.vary.n=\(8, 1\): needs 2 or more"),
        ("vary.dimensions", (), r"config.vary.dimensions=\(\): needs 1 or more"),
        ("identity.widths", (0.0,), r"config.identity.widths=\(0.0,\): needs numbers more than 0"),
        ("features.counts", (16,), r"config.features.counts=\(16,\): needs two or more, to fit an exponent"),
    ],
)
def test_values_that_cannot_be_used_are_refused_by_key(key, value, message):
    config = ConfigDict(kernel_regression.ATTENTION)
    config.update_from_flattened_dict({key: value})
    with pytest.raises(UserError, match=message):
        check(config)
