"""A keyed permutation: every index once, another order for another key, no index preferred."""

import numpy as np
import pytest
from scipy import stats

from attention_jax.data.permutation import permuted


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 100, 1023, 1025])
def test_every_place_is_met_once(size):
    assert sorted(permuted(np.arange(size), size, (0, 1))) == list(range(size))


def test_a_part_is_the_part_of_the_whole():
    whole = permuted(np.arange(1000), 1000, (3,))
    np.testing.assert_array_equal(permuted(np.arange(200, 300), 1000, (3,)), whole[200:300])


def test_a_billion_places_need_no_list():
    found = permuted(np.arange(10**9 - 5, 10**9), 10**9, (0,))
    assert len(set(found.tolist())) == 5
    assert (found < 10**9).all()


def test_over_keys_every_place_is_as_likely_as_every_other():
    size, keys = 6, 3000
    found = np.stack([permuted(np.arange(size), size, (key,)) for key in range(keys)])
    for index in range(size):
        assert stats.chisquare(np.bincount(found[:, index], minlength=size)).pvalue > 1e-4
    pairs = found[:, 0] * size + found[:, 1]
    counts = np.bincount(pairs, minlength=size * size)[np.flatnonzero(~np.eye(size, dtype=bool))]
    assert stats.chisquare(counts).pvalue > 1e-4
