"""The prefix-matching score, against loops, and at both of its ends."""

import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.induction import prefix_matching

TOKENS = np.array([[3, 1, 4, 1, 5, 3, 1, 4], [2, 7, 2, 7, 2, 7, 2, 7]])


def score(weights, tokens):
    """The score of one head, in loops."""
    found = []
    for row, text in zip(weights, tokens, strict=True):
        for i, token in enumerate(text):
            keys = [j for j in range(1, i + 1) if text[j - 1] == token]
            if keys:
                found.append(sum(row[i, j] for j in keys))
    return np.mean(found)


def test_the_score_is_the_mean_weight_on_what_followed_the_same_token_before(random):
    weights = random.random((2, 3, 2, 8, 8))
    found = prefix_matching(jnp.array(weights), jnp.array(TOKENS))
    expected = [[score(weights[:, layer, head], TOKENS) for head in range(2)] for layer in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(("shift", "expected"), [(1, 1.0), (0, 0.0)])
def test_a_head_that_goes_on_as_before_scores_1_and_one_that_looks_at_the_same_token_0(shift, expected):
    period = 5
    tokens = np.tile(np.random.default_rng(0).permutation(9)[:period], 2)[None]
    weights = np.zeros((1, 1, 1, 10, 10))
    for query in range(period, 10):
        weights[..., query, query - period + shift] = 1
    assert prefix_matching(jnp.array(weights), jnp.array(tokens)).item() == pytest.approx(expected)
