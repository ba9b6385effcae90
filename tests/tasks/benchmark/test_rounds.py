"""Rows of a benchmark: who is measured when, and what values say of one another."""

import math

import pytest

from attention_jax.tasks.benchmark.rounds import Growth, Row, in_turn


def test_all_are_measured_once_a_round_and_who_is_first_moves_on():
    order = []
    measures = {name: lambda name=name: order.append(name) or len(order) for name in ("ours", "a", "b")}
    ours, others = in_turn(3, measures["ours"], {"a": measures["a"], "b": measures["b"]})
    assert order == ["ours", "a", "b", "a", "b", "ours", "b", "ours", "a"]
    assert ours == [1, 6, 8]
    assert others == {"a": [2, 4, 9], "b": [3, 5, 7]}


@pytest.mark.parametrize(("unit", "best", "ratio"), [("tokens/s", "fast", 2.0), ("s", "slow", 0.1)])
def test_a_ratio_is_to_the_best_of_the_others_and_more_is_better(unit, best, ratio):
    row = Row("part", "what", unit, [20.0, 40.0, 80.0], {"slow": [2.0, 4.0, 8.0], "fast": [10.0, 20.0, 40.0]})
    assert row.best == best
    assert row.ratio == pytest.approx((ratio, ratio, ratio))


def test_a_ratios_interval_is_students_of_the_logarithms():
    row = Row("part", "what", "s", [1.0, 1.0], {"other": [2.0, 8.0]})
    mean, low, high = row.ratio
    half = 12.7062047 * math.log(4) / 2  # t of one degree of freedom at 97.5%, of two values that are ln 4 apart
    assert mean == pytest.approx(4.0)
    assert math.log(high / mean) == pytest.approx(half)
    assert math.log(mean / low) == pytest.approx(half)


def test_a_row_without_others_has_no_ratio():
    assert Row("part", "what", "s", [1.0]).ratio is None


def test_a_growths_exponent_is_that_of_the_power_that_made_it():
    sizes = [1, 2, 4, 8]
    found = Growth("part", "what", "rows", sizes, [3.0 * size**2 for size in sizes], 2).as_dict()
    assert found["exponent"] == [2, 2, 2]
