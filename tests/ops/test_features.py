"""Feature maps: their formulas in float64, what random ones are on average, and the angles of their directions."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.ops.features import elu_features, orthogonal_directions, positive_features, unit_features

SIZE, COUNT = 4, 10


def test_features_of_elu_are_more_than_0_and_those_of_the_formula():
    x = np.linspace(-5, 5, 21)
    np.testing.assert_allclose(elu_features(jnp.asarray(x)), [a + 1 if a > 0 else math.exp(a) for a in x], rtol=1e-6)
    slopes = jax.vmap(jax.grad(elu_features))(jnp.array([-500.0, -1.0, 0.0, 1.0, 500.0]))
    np.testing.assert_allclose(slopes, [0, math.exp(-1), 1, 1, 1], rtol=1e-6)


def test_unit_features_are_silus_of_length_1_and_0_where_all_are():
    x = np.random.default_rng(0).normal(size=(3, SIZE))
    active = x / (1 + np.exp(-x))
    expected = active / np.linalg.norm(active, axis=-1, keepdims=True)
    np.testing.assert_allclose(unit_features(jnp.asarray(x)), expected, rtol=1e-4)
    assert not unit_features(jnp.zeros(SIZE)).any()
    assert np.isfinite(jax.jacobian(unit_features)(jnp.zeros(SIZE))).all()


def test_positive_features_are_those_of_the_formula():
    x, w = np.random.default_rng(0).normal(size=(3, SIZE)), np.random.default_rng(1).normal(size=(COUNT, SIZE))
    expected = [[math.exp(w[i] @ row - row @ row / 2) / math.sqrt(COUNT) for i in range(COUNT)] for row in x]
    np.testing.assert_allclose(positive_features(jnp.asarray(x, jnp.float32), jnp.asarray(w)), expected, rtol=1e-5)


def test_products_of_positive_features_are_on_average_exponentials_of_products():
    query, key = jnp.array([0.5, -0.3, 0.2, 0.4]), jnp.array([0.1, 0.6, -0.2, 0.3])

    @jax.jit
    @jax.vmap
    def product(key_of_draw):
        directions = orthogonal_directions(key_of_draw, COUNT, SIZE)
        return positive_features(query, directions) @ positive_features(key, directions)

    found = np.asarray(product(jax.random.split(jax.random.key(0), 4000)), np.float64)
    error = found.std() / math.sqrt(len(found))
    assert abs(found.mean() - math.exp(float(query @ key))) < 4 * error


def test_directions_of_a_block_are_at_right_angles_and_as_long_as_normal_vectors():
    directions = np.asarray(orthogonal_directions(jax.random.key(0), COUNT, SIZE))
    assert directions.shape == (COUNT, SIZE)
    for first in range(0, COUNT, SIZE):
        block = directions[first : first + SIZE]
        gram = block @ block.T
        np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-5)
    squares = np.sum(np.asarray(orthogonal_directions(jax.random.key(1), 2000, SIZE)) ** 2, axis=-1)
    assert abs(squares.mean() - SIZE) < 4 * math.sqrt(2 * SIZE / 2000)
