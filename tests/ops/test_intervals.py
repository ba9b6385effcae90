"""Interval arithmetic against every number that an interval has."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.intervals import Interval, hull

RANGES = [(low, high) for low in range(-3, 4) for high in range(low, 4)]
NUMBERS = {
    "sum": lambda a, b: a + b,
    "sum_with_a_number": lambda a, b: 1 + a + 2,
    "difference": lambda a, b: a - b,
    "difference_from_a_number": lambda a, b: 2 - a,
    "distance": lambda a, b: abs(a - b),
}
TRUTHS = {
    "less": lambda a, b: a < b,
    "at_most": lambda a, b: a <= b,
    "more": lambda a, b: a > 1,
    "at_least": lambda a, b: a >= b,
    "equal": lambda a, b: a == b,
    "different": lambda a, b: a != b,
    "both": lambda a, b: (a < 2) & (b > 0),
    "either": lambda a, b: (a < b) | (a > 2),
    "neither": lambda a, b: ~((a < 0) | (b < 0)),
}


def pairs():
    return itertools.product(RANGES, RANGES)


def every(rule, first, second):
    """What a rule gives for all numbers of two ranges."""
    a, b = np.meshgrid(np.arange(first[0], first[1] + 1), np.arange(second[0], second[1] + 1))
    return np.broadcast_to(rule(a, b), a.shape)


def intervals():
    """The first and the second of all pairs of ranges."""
    ends = jnp.array(list(pairs()))
    return (Interval(ends[:, n, 0], ends[:, n, 1]) for n in range(2))


@pytest.mark.parametrize("name", NUMBERS)
def test_an_interval_goes_from_the_least_to_the_highest_number(name):
    found = NUMBERS[name](*intervals())
    wanted = [every(NUMBERS[name], *ranges) for ranges in pairs()]
    np.testing.assert_array_equal(found.low, [numbers.min() for numbers in wanted])
    np.testing.assert_array_equal(found.high, [numbers.max() for numbers in wanted])


@pytest.mark.parametrize("name", TRUTHS)
def test_what_is_sure_holds_always_and_what_cannot_be_never(name):
    found = TRUTHS[name](*intervals())
    wanted = [every(TRUTHS[name], *ranges) for ranges in pairs()]
    always, ever = (np.array([getattr(truths, of)() for truths in wanted]) for of in ("all", "any"))
    assert not (np.asarray(found.low) & ~always).any()
    assert not (~np.asarray(found.high) & ever).any()
    if name in ("less", "at_most", "more", "at_least", "equal", "different", "both"):
        np.testing.assert_array_equal((found.low, found.high), (always, ever))


def test_a_hull_has_the_least_and_the_highest_of_neighbours():
    found = hull(jnp.array([[3, 1, 4, 1], [5, 9, 2, 6]]), -1, 2)
    np.testing.assert_array_equal(found.low, [[1, 1], [5, 2]])
    np.testing.assert_array_equal(found.high, [[3, 4], [9, 6]])
    of_truths = hull(jnp.array([True, False, True, True]), -1, 2)
    np.testing.assert_array_equal(of_truths.low, [False, True])
    np.testing.assert_array_equal(of_truths.high, [True, True])


def test_with_nan_nothing_is_sure_and_everything_may_be():
    found = hull(jnp.array([jnp.nan, 1.0]), -1, 2) <= 3
    assert not found.low.any()
    assert found.high.all()
