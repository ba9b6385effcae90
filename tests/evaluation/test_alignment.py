"""Alignment measures on matrices small enough to count by hand."""

import numpy as np

from attention_jax.evaluation.alignment import agreement, alignment_error_rate, coverage, entropy, monotonicity

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


def test_the_alignment_error_rate_counts_links_that_are_missing_and_links_that_are_wrong():
    truth = [[0], [1], [2, 3], [3]]
    assert alignment_error_rate([DIAGONAL], [[[0], [1], [2], [3]]]) == 0
    assert alignment_error_rate([DIAGONAL], [truth]) == 1 - 2 * 4 / (4 + 5)
    assert alignment_error_rate([REVERSED], [truth]) == 1
    assert alignment_error_rate([DIAGONAL], [[[0], [], [0], []]]) == 1 - 2 * 1 / (2 + 2)


def test_coverage_is_the_share_of_source_words_that_are_looked_at_their_end_left_out():
    assert coverage([DIAGONAL]) == 1
    assert coverage([np.eye(5)[[0, 0, 0, 4]], DIAGONAL]) == (1 / 4 + 1) / 2


def test_a_word_that_looks_nowhere_is_no_link():
    blind = DIAGONAL * [[1], [0], [1], [1]]
    truth = [[0], [1], [2], [3]]
    assert agreement([blind], [truth]) == 0.75
    assert alignment_error_rate([blind], [truth]) == 1 - 2 * 3 / (3 + 4)
    assert entropy([blind]) == 0
    assert monotonicity([DIAGONAL[[1, 0, 2]] * [[1], [0], [1]]]) == 1


def test_entropy_is_zero_for_one_word_and_the_logarithm_for_all_alike():
    assert entropy([DIAGONAL]) == 0
    assert entropy([np.array([[-0.25, 0.5, 0.25]])]) == entropy([np.array([[0.25, 0.5, 0.25]])])  # of |α|
    np.testing.assert_allclose(entropy([np.full((3, 5), 0.2)]), np.log(5))


def test_where_no_word_has_a_true_link_there_is_no_error_rate():
    assert np.isnan(alignment_error_rate([np.eye(3)], [[(), (), ()]]))
