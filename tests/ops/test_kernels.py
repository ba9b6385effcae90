"""Kernels against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.kernels import KERNELS, kernel_weights, scaled_distance

DEFINITIONS = {
    "gaussian": lambda u: np.exp(-(u**2) / 2),
    "boxcar": lambda u: float(abs(u) < 1),
    "triangular": lambda u: max(0, 1 - abs(u)),
    "epanechnikov": lambda u: 0.75 * max(0, 1 - u**2),
    "constant": lambda u: 1.0,
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_its_definition(name):
    u = np.linspace(-3, 3, 61).astype(np.float32)
    np.testing.assert_allclose(KERNELS[name].apply(jnp.asarray(u)), [DEFINITIONS[name](x) for x in u], atol=1e-6)


def test_a_logarithm_is_the_kernels_own():
    u = jnp.linspace(-3, 3, 13)
    for kernel in KERNELS.values():
        if kernel.log_of_squared is not None:
            np.testing.assert_allclose(jnp.exp(kernel.log_of_squared(u**2)), kernel.apply(u), rtol=1e-6)


def test_distances_take_one_width_or_one_for_each_coordinate(random):
    query, key, width = (random.normal(size=s).astype(np.float32) for s in ((2, 4, 3), (2, 5, 3), (3,)))
    for w in (0.5, np.abs(width)):
        expected = np.linalg.norm((query[:, :, None] - key[:, None]) / w, axis=-1)
        np.testing.assert_allclose(scaled_distance(query, key, jnp.asarray(w)), expected, rtol=1e-5)


def test_distances_keep_their_value_however_the_compiler_fuses_them(random):
    x = random.uniform(0, 5, (300, 50, 1)).astype(np.float32)
    width = np.full((300, 1), np.exp(-0.1), np.float32)
    fused = jax.jit(jax.vmap(lambda x, w: kernel_weights(x, x, width=w)))(x, width)
    u = (x.astype(np.float64) - x.swapaxes(1, 2)) / np.exp(-0.1)
    expected = np.exp(-(u**2) / 2)
    np.testing.assert_allclose(fused, expected / expected.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_the_gradient_at_distance_zero_is_zero_and_that_of_a_width_finite():
    x = jnp.array([[1.0], [1.0], [2.0]])
    gradient = jax.grad(lambda w: kernel_weights(x, x, width=w)[0, 2])(0.5)
    assert np.isfinite(gradient)
    for points in (x, jnp.tile(x, 2)):
        np.testing.assert_array_equal(jax.grad(lambda q, k: scaled_distance(q, k).sum())(points[:1], points[:2]), 0)


def test_a_far_query_under_a_narrow_gaussian_still_finds_its_nearest_neighbour():
    weights = kernel_weights(jnp.array([[50.0]]), jnp.array([[0.0], [1.0], [2.0]]), "gaussian", 0.1)
    np.testing.assert_allclose(weights, [[0, 0, 1]], atol=1e-6)


def test_bfloat16_distances_are_taken_in_float32(random):
    query, key = (jnp.asarray(random.normal(size=s), jnp.bfloat16) for s in ((4, 1), (6, 1)))
    exact = kernel_weights(query.astype(jnp.float32), key.astype(jnp.float32), width=0.1)
    np.testing.assert_allclose(kernel_weights(query, key, width=0.1), exact, rtol=1e-6)


def test_an_unknown_kernel_is_refused_with_the_list():
    with pytest.raises(ValueError, match="kernel='tricube': choose one of gaussian, boxcar"):
        kernel_weights(jnp.ones((1, 1)), jnp.ones((1, 1)), "tricube")
