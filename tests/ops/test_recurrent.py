"""The recurrent unit: any batch axes, padding, refusals (its equations are tested with the models)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.recurrent import GRUWeights, gru

KEYS = jax.random.split(jax.random.key(0), 5)
WEIGHTS = GRUWeights(*(jax.random.normal(k, s) for k, s in zip(KEYS, ((3, 12), (4, 12), (12,), (4,)), strict=False)))
X = jax.random.normal(KEYS[4], (2, 3, 5, 3))
VALID = jnp.ones((2, 3, 5), bool)


@pytest.mark.parametrize("reverse", [False, True])
def test_any_number_of_batch_axes(reverse):
    states, last = gru(X, VALID, WEIGHTS, reverse)
    assert states.shape == (2, 3, 5, 4)
    alone, last_alone = gru(X[1, 2], VALID[1, 2], WEIGHTS, reverse)
    np.testing.assert_allclose(states[1, 2], alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last[1, 2], last_alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last, states[..., 0 if reverse else -1, :])


@pytest.mark.parametrize("reverse", [False, True])
def test_padding_changes_nothing(reverse):
    valid = VALID.at[..., 3:].set(False)
    states, last = gru(X, valid, WEIGHTS, reverse)
    short, last_short = gru(X[..., :3, :], VALID[..., :3], WEIGHTS, reverse)
    np.testing.assert_allclose(states[..., :3, :], short, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, last_short, rtol=1e-5, atol=1e-6)


def test_misfits_are_refused_by_name_and_shape():
    with pytest.raises(ValueError, match=r"w_i has shape \(3, 12\), needs \(2, 12\): x is \(2, 3, 5, 2\)"):
        gru(X[..., :2], VALID, WEIGHTS)
    with pytest.raises(ValueError, match=r"valid has shape \(2, 3, 4\), needs \(2, 3, 5\)"):
        gru(X, VALID[..., 1:], WEIGHTS)
