"""Divergences equal SciPy's and the sums that define them, and have finite gradients at zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from attention_jax.ops.divergence import jensen_shannon, total_variation

P = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.25, 0.25, 0.5]])
Q = np.array([[0.1, 0.6, 0.3], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]])


def test_jensen_shannon_is_the_square_of_scipys_distance():
    np.testing.assert_allclose(jensen_shannon(P, Q), jensenshannon(P, Q, axis=-1) ** 2, atol=1e-6)


def test_total_variation_is_the_most_that_an_event_can_differ():
    events = np.array(np.meshgrid(*[[0, 1]] * 3)).reshape(3, -1)
    np.testing.assert_allclose(total_variation(P, Q), np.abs((P - Q) @ events).max(axis=-1), atol=1e-6)


@pytest.mark.parametrize(("measure", "most"), [(jensen_shannon, np.log(2)), (total_variation, 1.0)])
def test_what_shares_nothing_is_farthest_and_the_same_is_at_0(measure, most):
    assert measure(P[1], Q[1]) == pytest.approx(most)
    assert measure(P[2], Q[2]) == pytest.approx(0, abs=1e-6)


def test_gradients_are_finite_where_a_weight_is_0():
    assert np.isfinite(jax.grad(lambda p: jensen_shannon(p, jnp.array(Q[1])))(jnp.array(P[1]))).all()
