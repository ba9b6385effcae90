"""Alignment measures on matrices small enough to count by hand."""

import numpy as np

from attention_jax.evaluation.alignment import agreement, monotonicity

DIAGONAL, REVERSED = np.eye(4), np.eye(4)[::-1]


def test_agreement_counts_words_whose_strongest_weight_is_on_a_true_source():
    truth = [[0], [1], [2, 3], [3]]
    assert agreement([DIAGONAL], [truth]) == 1
    assert agreement([REVERSED], [truth]) == 0
    assert agreement([DIAGONAL, REVERSED], [truth, truth]) == 0.5


def test_words_without_an_alignment_are_left_out():
    assert agreement([DIAGONAL], [[[0], [], [0], []]]) == 0.5


def test_monotonicity_is_the_share_of_steps_that_do_not_go_back():
    assert monotonicity([DIAGONAL]) == 1
    assert monotonicity([REVERSED]) == 0
    assert monotonicity([np.eye(3)[[0, 0, 2]], np.eye(3)[[2, 0, 1]]]) == 0.75
