"""Estimators on a sample: each against a NumPy float64 twin, the leak, the refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.data.regression import PROBLEMS
from attention_jax.models.kernel_regression import estimator, learned_width, silverman_width, width_loss

SAMPLE = PROBLEMS["sine_power"](n=50, noise=0.5).draw(jax.random.key(0))
KERNELS = {
    "gaussian": lambda u: np.exp(-(u**2) / 2),
    "boxcar": lambda u: (np.abs(u) < 1).astype(float),
    "triangular": lambda u: np.maximum(1 - np.abs(u), 0),
    "epanechnikov": lambda u: np.maximum(1 - u**2, 0),
    "constant": np.ones_like,
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("width", [0.1, 0.2, 0.5, 1])
def test_an_estimate_is_its_formula(kernel, width):
    x, y = (np.asarray(a, np.float64)[:, 0] for a in SAMPLE)
    queries = np.arange(50) / 10
    weights = KERNELS[kernel]((queries[:, None] - x) / width)
    total = weights.sum(1)
    expected = np.where(total > 0, weights @ y / np.where(total > 0, total, 1), y.mean())
    estimate = estimator(f"{kernel}_{width}", 0, 0)(*SAMPLE, jnp.asarray(queries)[:, None])
    np.testing.assert_allclose(estimate[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_the_average_is_the_mean_of_the_values():
    estimate = estimator("average", 0, 0)(*SAMPLE, jnp.zeros((3, 1)))
    np.testing.assert_allclose(estimate, SAMPLE.y.mean(), rtol=1e-5)


def test_silvermans_width_is_its_formula():
    x = np.asarray(SAMPLE.x, np.float64)[:, 0]
    iqr = np.subtract(*np.percentile(x, [75, 25]))
    expected = 0.9 * min(x.std(ddof=1), iqr / 1.34) * 50 ** (-1 / 5)
    np.testing.assert_allclose(silverman_width(SAMPLE.x), [expected], rtol=1e-5)


def test_where_half_of_the_points_are_one_silvermans_width_is_of_the_deviation():
    x = np.array([0.0] * 8 + [1, 2, -1])
    expected = 0.9 * x.std(ddof=1) * len(x) ** (-1 / 5)
    np.testing.assert_allclose(silverman_width(jnp.float32(x)[:, None]), [expected], rtol=1e-5)
    with pytest.raises(ValueError, match=r"x is \(1, 1\): a spread needs two points or more"):
        silverman_width(jnp.ones((1, 1)))


def test_the_learned_width_is_at_a_minimum_of_the_leave_one_out_loss():
    keep = ~jnp.eye(50, dtype=bool)
    (width,), losses = learned_width(*SAMPLE, True, steps=200, learning_rate=0.05)
    loss = jax.vmap(lambda w: width_loss(jnp.log(w)[None], *SAMPLE, keep))(width * jnp.array([0.8, 1.0, 1.25]))
    assert losses[-1] < losses[0]
    assert loss[1] == loss.min()


def test_without_leaving_its_own_pair_out_the_width_collapses_and_the_loss_vanishes():
    (honest,), honest_losses = learned_width(*SAMPLE, True, steps=400, learning_rate=0.05)
    (leaky,), leaky_losses = learned_width(*SAMPLE, False, steps=400, learning_rate=0.05)
    assert leaky < honest / 2
    assert leaky_losses[-1] < 0.1 * honest_losses[-1]


def test_in_the_plane_each_coordinate_learns_its_own_width():
    key = jax.random.key(1)
    x = jax.random.uniform(key, (80, 2))
    y = jnp.sin(6 * x[:, :1])  # the second coordinate says nothing
    widths, _ = learned_width(x, y, True, steps=300, learning_rate=0.05)
    assert widths.shape == (2,)
    assert widths[1] > 5 * widths[0]


@pytest.mark.parametrize("name", ["gauss_1", "gaussian", "gaussian_x", "boxcar_-1", "boxcar_0"])
def test_an_unknown_estimator_is_refused_with_what_there_is(name):
    with pytest.raises(ValueError, match=f"estimators='{name}': choose one of average, silverman.*KERNEL_WIDTH"):
        estimator(name, 0, 0)


def test_a_kernel_that_there_is_not_is_refused_whether_it_is_asked_for_or_not():
    with pytest.raises(ValueError, match=r"kernel.name='cauchy': choose one of gaussian"):
        estimator("average", 1, 0.1, kernel=("cauchy", 1.0))
