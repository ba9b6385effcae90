"""Functions that are drawn have the variance and the covariance that are said."""

import functools

import jax
import numpy as np

from attention_jax.data.functions import KINDS, draw

MANY = 20_000


def test_values_are_the_truth_and_noise_and_functions_have_variance_one():
    draws = jax.jit(jax.vmap(functools.partial(draw, n=2, queries=2, dimensions=3, noise=0.5)))(
        jax.random.split(jax.random.key(0), MANY)
    )
    for values, variance in ((draws.truth, 1.0), (draws.value, 1.25)):
        np.testing.assert_allclose(np.mean(np.square(values), axis=(0, 1)), [variance] * len(KINDS), rtol=0.05)


def test_a_smooth_functions_covariance_falls_with_distance_as_the_gaussian_kernel_of_width_root_d():
    of_two = functools.partial(draw, n=0, queries=2, dimensions=3, noise=0.0)
    draws = jax.jit(jax.vmap(of_two))(jax.random.split(jax.random.key(1), MANY))
    squared = np.sum(np.square(draws.query[:, 0] - draws.query[:, 1]), axis=-1)
    products = np.asarray(draws.truth[:, 0, 1] * draws.truth[:, 1, 1])
    for low, high in ((0, 3), (3, 6), (6, 12)):
        chosen = (squared >= low) & (squared < high)
        error = products[chosen].std() / np.sqrt(chosen.sum())
        assert abs(products[chosen].mean() - np.exp(-squared[chosen] / 6).mean()) < 4 * error


def test_another_noise_leaves_points_and_functions_as_they_are():
    quiet, loud = (draw(jax.random.key(0), 4, 3, 2, noise) for noise in (0.0, 1.0))
    np.testing.assert_array_equal(quiet.truth, loud.truth)
    np.testing.assert_array_equal(quiet.key, loud.key)
