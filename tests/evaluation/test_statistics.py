"""Intervals against SciPy's own and against their promise."""

import math

import numpy as np
import pytest
from scipy import stats

from attention_jax.evaluation.statistics import mean_interval, summarize


def test_the_interval_is_students_t(random):
    values = random.normal(size=7)
    expected = stats.t.interval(0.95, 6, values.mean(), stats.sem(values))
    np.testing.assert_allclose(mean_interval(values), [values.mean(), *expected])


def test_it_covers_the_mean_as_often_as_it_says(random):
    intervals = np.array([mean_interval(random.normal(size=5)) for _ in range(2000)])
    covered = ((intervals[:, 1] < 0) & (intervals[:, 2] > 0)).mean()
    assert covered == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 2000))


def test_one_value_has_no_interval():
    mean, low, high = mean_interval([3.0])
    assert mean == 3
    assert math.isnan(low)
    assert math.isnan(high)


def test_members_are_averaged_number_by_number():
    members = [{"test": {"bleu": 10.0, "signature": "s"}}, {"test": {"bleu": 20.0, "signature": "s"}}]
    means, intervals = summarize(members)
    assert means == {"test": {"bleu": 15.0, "signature": "s"}}
    assert intervals == {"test": {"bleu": [pytest.approx(15 - 63.53, abs=0.01), pytest.approx(15 + 63.53, abs=0.01)]}}
    assert summarize(members[:1]) == (members[0], {})
