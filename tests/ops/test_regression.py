"""Estimators against loops and solvers in float64, and the identities that tie them to attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.pooling import attend, kernel_regression
from attention_jax.ops.regression import delta_rule, gradient_step, kernel_ridge, local_linear, ridge
from attention_jax.ops.scoring import dot


def kernel(query, key, width):
    return np.exp(-np.sum((query - key) ** 2) / (2 * width**2))


def local_linear_oracle(query, key, value, width, penalty):
    """Weighted least squares of an intercept and a slope at every query, the slope penalised."""
    found = []
    for q in query:
        weights = np.array([kernel(q, k, width) for k in key])
        weights /= weights.sum()
        design = np.array([[1, *(k - q)] for k in key])
        normal = design.T @ np.diag(weights) @ design + penalty * width**2 * np.diag([0] + [1] * len(q))
        found.append(np.linalg.solve(normal, design.T @ np.diag(weights) @ value)[0])
    return np.array(found)


def ridge_oracle(query, key, value, penalty):
    """Least squares of the pairs and of one more for each feature, √penalty long, whose value is 0."""
    more = np.sqrt(penalty) * np.eye(key.shape[1])
    keys, values = np.concatenate([key, more]), np.concatenate([value, np.zeros((len(more), value.shape[1]))])
    return query @ np.linalg.lstsq(keys, values, rcond=None)[0]


def kernel_ridge_oracle(query, key, value, width, penalty):
    among = np.array([[kernel(a, b, width) for b in key] for a in key]) + penalty * np.eye(len(key))
    return np.array([[kernel(q, k, width) for k in key] for q in query]) @ np.linalg.inv(among) @ value


def gradient_step_oracle(query, key, value, rate):
    """The gradient of ½ Σ ‖v − W k‖² at W = 0, by differences, which are exact of a quadratic."""
    loss = lambda w: 0.5 * sum(np.sum((v - w @ k) ** 2) for k, v in zip(key, value, strict=True))  # noqa: E731
    gradient = np.zeros((value.shape[1], key.shape[1]))
    for index in np.ndindex(gradient.shape):
        step = np.zeros_like(gradient)
        step[index] = 0.5
        gradient[index] = loss(step) - loss(-step)
    return query @ (-rate * gradient).T


def delta_rule_oracle(query, key, value, rate):
    w = np.zeros((value.shape[1], key.shape[1]))
    for k, v in zip(key, value, strict=True):
        w = w + rate * np.outer(v - w @ k, k)
    return query @ w.T


CASES = {  # an estimator, what it is in float64, its numbers
    "local_linear": (local_linear, local_linear_oracle, (0.8, 0.05)),
    "ridge": (ridge, ridge_oracle, (0.7,)),
    "kernel_ridge": (kernel_ridge, kernel_ridge_oracle, (0.8, 0.3)),
    "gradient_step": (gradient_step, gradient_step_oracle, (0.1,)),
    "delta_rule": (delta_rule, delta_rule_oracle, (0.2,)),
}


def triple(random, batch=(2,)):
    return tuple(random.normal(size=(*batch, *shape)).astype(np.float32) for shape in ((4, 3), (7, 3), (7, 2)))


@pytest.mark.parametrize("name", CASES)
def test_an_estimator_is_its_definition_in_float64(name, random):
    estimate, oracle, numbers = CASES[name]
    asked = triple(random)
    found = jax.jit(estimate)(*asked, *numbers)
    expected = [oracle(*one, *numbers) for one in zip(*(array.astype(float) for array in asked), strict=True)]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_an_estimate_is_linear_in_the_values_and_keeps_batch_axes(name, random):
    estimate, numbers = jax.jit(CASES[name][0]), CASES[name][2]
    query, key, value = triple(random)
    of_each = estimate(query, key, np.broadcast_to(np.eye(7, dtype=np.float32), (2, 7, 7)), *numbers)
    np.testing.assert_allclose(estimate(query, key, value, *numbers), of_each @ value, rtol=1e-3, atol=1e-5)
    alone = estimate(query[0], key[0], value[0], *numbers)
    np.testing.assert_allclose(alone, estimate(query, key, value, *numbers)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("width", [0.3, 1.0, 3.0])
def test_dot_product_attention_at_temperature_width_squared_less_half_the_keys_norms_is_kernel_regression(
    width, random
):
    query, key, value = triple(random)
    bias = -np.sum(key**2, axis=-1)[:, None] / (2 * width**2)
    found = attend(query / width**2, key, value, score=dot, bias=bias)
    np.testing.assert_allclose(found, kernel_regression(query, key, value, width=width), rtol=1e-4, atol=1e-5)


def test_local_linear_finds_any_line_which_attention_does_not(random):
    query, key, _ = triple(random, ())
    key = np.concatenate([key, *triple(random, ())[:2]])
    slope = random.normal(size=(3, 2)).astype(np.float32)
    found = local_linear(query, key, key @ slope + 1, 1.0, 1e-6)
    np.testing.assert_allclose(found, query @ slope + 1, atol=1e-3)
    assert np.max(np.abs(kernel_regression(query, key, key @ slope + 1) - (query @ slope + 1))) > 0.1


def test_with_a_large_penalty_a_local_line_is_attention(random):
    query, key, value = triple(random)
    attention = kernel_regression(query, key, value, width=0.7)
    np.testing.assert_allclose(local_linear(query, key, value, 0.7, 1e6), attention, rtol=1e-4, atol=1e-5)


def test_kernel_ridge_of_a_small_penalty_goes_through_the_pairs(random):
    _, key, value = triple(random)
    np.testing.assert_allclose(kernel_ridge(key, key, value, 1.0, 1e-4), value, atol=0.05)


def test_many_gradient_steps_of_the_delta_rule_over_the_same_pairs_end_at_least_squares(random):
    query, key, _ = triple(random, ())
    value = key @ random.normal(size=(3, 2)).astype(np.float32)
    again = lambda array: np.tile(array, (200, 1))  # noqa: E731
    np.testing.assert_allclose(
        delta_rule(query, again(key), again(value), 0.1), ridge(query, key, value, 1e-6), rtol=1e-2, atol=1e-2
    )


def test_the_best_rate_is_where_the_expected_error_is_least_and_the_error_there_is_the_closed_form():
    n, d, noise_ratio = 12, 3, 0.5
    best = 1 / (n + d + 1 + noise_ratio)
    rates = best * jnp.array([0.8, 1.0, 1.2])

    def errors(key):
        key_x, key_w, key_noise, key_query = jax.random.split(key, 4)
        x, w = jax.random.normal(key_x, (n, d)), jax.random.normal(key_w, (d, 1))
        y = x @ w + jnp.sqrt(noise_ratio) * jax.random.normal(key_noise, (n, 1))
        query = jax.random.normal(key_query, (8, d))
        return jax.vmap(lambda rate: jnp.mean(jnp.square(gradient_step(query, x, y, rate) - query @ w)))(rates)

    found = np.asarray(jax.jit(jax.vmap(errors))(jax.random.split(jax.random.key(0), 20_000)), np.float64)
    mean, error = found.mean(axis=0), found.std(axis=0) / np.sqrt(len(found))
    assert mean[1] < min(mean[0], mean[2])
    assert abs(mean[1] - d * (1 - n * best)) < 4 * error[1]


@pytest.mark.parametrize("name", CASES)
def test_queries_and_keys_of_other_sizes_are_refused(name):
    estimate, _, numbers = CASES[name]
    with pytest.raises(ValueError, match=r"need the same size along axis -1: 2 is not 3"):
        estimate(jnp.ones((1, 2)), jnp.ones((4, 3)), jnp.ones((4, 1)), *numbers)


@pytest.mark.parametrize("estimate", [local_linear, kernel_ridge])
def test_where_differences_alone_count_no_shift_of_keys_and_queries_changes_an_estimate(estimate, random):
    query, key, value = triple(random)
    near = estimate(query, key, value, 0.8, 0.1)
    np.testing.assert_allclose(estimate(query + 1024, key + 1024, value, 0.8, 0.1), near, atol=5e-3)
