"""Repeated random tokens: one period, drawn of the vocabulary, over and over."""

import jax
import numpy as np
import pytest

from attention_jax.data.repeated import repeated


@pytest.mark.parametrize("period", [1, 3, 8])
def test_a_token_is_that_of_one_period_before_and_none_is_padding(period):
    found = np.asarray(repeated(jax.random.key(0), period, 20, 6))
    np.testing.assert_array_equal(found[period:], found[:-period])
    assert set(found.tolist()) <= set(range(1, 6))


def test_tokens_of_a_period_are_drawn_uniformly():
    found = np.asarray(repeated(jax.random.key(0), 5000, 5000, 6))
    np.testing.assert_allclose(np.bincount(found, minlength=6)[1:] / 5000, 0.2, atol=0.03)
