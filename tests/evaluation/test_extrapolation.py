"""Curves against length as numbers."""

import numpy as np
import pytest

from attention_jax.evaluation.extrapolation import area, kendall, reciprocal_ranks


def test_an_area_is_the_mean_height_whatever_the_steps_between_lengths():
    lengths = [16, 20, 24, 32, 64]
    assert area(lengths, [0.5] * 5) == pytest.approx(0.5)
    assert area(lengths, [2 * length for length in lengths]) == pytest.approx(80)
    assert area([16], [0.3]) == 0.3


def test_reciprocal_ranks_are_a_mean_over_groups_and_equal_scores_share_theirs():
    scores = np.array([[3.0, 1.0], [3.0, 2.0], [1.0, 3.0]])  # of three settings in two groups
    expected = [(1 / 1.5 + 1 / 3) / 2, (1 / 1.5 + 1 / 2) / 2, (1 / 3 + 1) / 2]
    np.testing.assert_allclose(reciprocal_ranks(scores), expected)
    np.testing.assert_allclose(reciprocal_ranks(np.stack([scores, -scores], -1))[:, 0], expected)


def test_kendalls_tau_is_one_in_order_and_minus_one_in_reverse():
    assert kendall([1, 2, 3], [10, 20, 30]) == 1
    assert kendall([1, 2, 3], [30, 20, 10]) == -1
    assert kendall([1, 2, 3], [10, 30, 20]) == pytest.approx(1 / 3)
