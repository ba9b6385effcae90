"""Rank correlation, against SciPy's."""

import numpy as np
import pytest
from scipy import stats

from attention_jax.evaluation.ranking import spearman


def test_rank_correlation_is_scipys_with_ties_too(random):
    one, other = random.integers(0, 5, 30), random.random(30)
    assert spearman(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)
    assert spearman(other, -np.exp(other)) == pytest.approx(-1)
    assert np.isnan(spearman(np.ones(3), np.arange(3)))
