"""Intervals against SciPy's own and against their promise."""

import math

import numpy as np
import pytest
from scipy import stats

from attention_jax.evaluation.statistics import (
    fitted_powers,
    mean_interval,
    metric_interval,
    resampled_sums,
    summarize,
    two_level_interval,
)

DRAWS = 2000


def test_the_interval_is_students_t(random):
    values = random.normal(size=7)
    expected = stats.t.interval(0.95, 6, values.mean(), stats.sem(values))
    np.testing.assert_allclose(mean_interval(values), [values.mean(), *expected])


@pytest.mark.parametrize("n", [3, 5, 20])
def test_it_covers_the_mean_as_often_as_it_says(random, n):
    intervals = np.array([mean_interval(random.normal(size=n)) for _ in range(DRAWS)])
    assert covered(intervals) == pytest.approx(0.95, abs=0.015)


def test_from_thirty_values_on_the_bootstrap_covers_skewed_ones_too(random):
    intervals = np.array([mean_interval(random.exponential(size=200) - 1) for _ in range(DRAWS)])
    assert covered(intervals) == pytest.approx(0.95, abs=0.02)
    assert mean_interval(np.arange(40.0)) == mean_interval(np.arange(40.0))


@pytest.mark.parametrize("seeds", [3, 10])
def test_an_interval_over_seeds_and_sentences_covers_the_mean_over_both(random, seeds):
    sentences = 60

    def draw():
        common = random.normal(size=sentences)  # how easy a sentence is, whatever the seed
        rows = common + 0.5 * random.normal(size=(seeds, 1)) + random.normal(size=(seeds, sentences))
        resampled = resampled_sums(rows.mean(0)[:, None], 200)[:, 0] / sentences
        return two_level_interval(rows.mean(1), resampled)

    assert 0.935 <= covered(np.array([draw() for _ in range(DRAWS)])) <= 0.98  # rather too wide: see its docstring


def test_resampled_sums_are_those_of_rows_drawn_with_replacement(random):
    rows = random.normal(size=(50, 3))
    sums = resampled_sums(rows, 3000)
    assert sums.shape == (3000, 3)
    np.testing.assert_allclose(sums.mean(0), rows.sum(0), atol=4 * rows.std(0).max() * math.sqrt(50 / 3000))
    np.testing.assert_allclose(sums.std(0), rows.std(0) * math.sqrt(50), rtol=0.06)


def covered(intervals):
    return np.mean((intervals[:, 1] < 0) & (intervals[:, 2] > 0))


def test_one_value_has_no_interval():
    mean, low, high = mean_interval([3.0])
    assert mean == 3
    assert math.isnan(low)
    assert math.isnan(high)


def test_the_interval_of_a_perplexity_is_made_on_the_logarithm_and_no_interval_leaves_the_bounds():
    values = [9.0, 14.0, 25.0]
    mean, low, high = metric_interval("validation.perplexity", values)
    assert mean_interval(values)[1] < 0 < low < mean < high
    assert np.log([mean, low, high]).tolist() == pytest.approx(mean_interval(np.log(values)))
    losses = np.log(values)
    assert mean == pytest.approx(math.exp(losses.mean()))  # the perplexity of the mean loss
    assert metric_interval("validation.perplexity", [1.0, 1.1])[1] == 1
    assert metric_interval("test.bleu", [99.0, 100.0])[2] == 100
    assert metric_interval("spearman.all", [0.6, 0.99])[1:] == (-1, 1)
    assert metric_interval("heads.encoder.0.1.positional", [0.2, 0.9])[1:] == (0, 1)
    assert metric_interval("roles.offsets.encoder.other", [2.0, 3.0])[1:] == (0, pytest.approx(8.853, abs=1e-3))
    assert metric_interval("of.another.experiment", [99.0, 100.0]) == mean_interval([99.0, 100.0])


def test_an_interval_has_its_mean_in_it_also_where_that_is_beyond_the_bounds():
    for values in ([-0.02, -0.03, -0.025], [1.2, 1.3, 1.25], [0.01, 0.02, 0.9]):
        mean, low, high = metric_interval("statistics.first", values)
        assert low <= mean <= high
        assert low >= min(0, mean)
        assert high <= max(1, mean)


def test_an_interval_on_the_logarithm_covers_the_perplexity_of_the_mean_loss(random):
    drawn = np.exp(0.3 * random.normal(size=(DRAWS, 5)))
    intervals = np.array([metric_interval("perplexity", 20 * row) for row in drawn]) - 20
    assert covered(intervals) == pytest.approx(0.95, abs=0.02)


def test_members_are_averaged_number_by_number():
    members = [{"test": {"bleu": 10.0, "signature": "s"}}, {"test": {"bleu": 20.0, "signature": "s"}}]
    means, intervals = summarize(members)
    assert means == {"test": {"bleu": 15.0, "signature": "s"}}
    assert intervals == {"test": {"bleu": [0.0, pytest.approx(15 + 63.53, abs=0.01)]}}
    assert summarize(members[:1]) == (members[0], {})


def test_powers_are_found_again_and_noise_widens_their_intervals(random):
    sizes = {"n": np.repeat([8, 16, 32, 64], 3), "d": np.tile([2, 4, 8], 4)}
    exact = 3.0 * sizes["n"] ** 2.0 * sizes["d"] ** 0.5
    found = fitted_powers(sizes, exact)
    np.testing.assert_allclose([found["n"], found["d"]], [[2] * 3, [0.5] * 3], atol=1e-6)
    with pytest.raises(ValueError, match="d is 8 everywhere"):
        fitted_powers({"n": [1, 2, 4], "d": [8, 8, 8]}, [1, 2, 4])
    low, high = fitted_powers(sizes, exact * np.exp(0.1 * random.normal(size=12)))["n"][1:]
    assert low < 2 < high
