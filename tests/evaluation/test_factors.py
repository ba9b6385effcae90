"""Factors of a grid, and means over what is not looked at."""

import itertools

import numpy as np
import pytest

from attention_jax.evaluation.comparison import Interval, Measured, compare, interval
from attention_jax.evaluation.factors import best_of, factors_of, is_grid, pooled


def test_keys_that_change_together_are_one_factor_and_what_does_not_change_is_none():
    sides = [{"encoder": name, "decoder": name, "n": n, "same": 1} for name in ("none", "alibi") for n in (1, 2, 3)]
    names, sizes = factors_of(sides)
    assert (names.key, names.levels, names.level_of) == ("encoder", ("none", "alibi"), (0, 0, 0, 1, 1, 1))
    assert (sizes.key, sizes.levels, sizes.level_of) == ("n", (1, 2, 3), (0, 1, 2) * 2)
    assert [factor.levels for factor in factors_of([{}, {"a": 1}])] == [(None, 1)]
    assert factors_of([{"a": 1}, {"a": 1}]) == []


def test_a_grid_has_every_combination_once():
    grid = [{"a": a, "b": b} for a, b in itertools.product((1, 2), "xyz")]
    assert is_grid(factors_of(grid), 6)
    assert not is_grid(factors_of(grid[:-1]), 5)
    assert not is_grid(factors_of([*grid, grid[0]]), 7)


def test_settings_are_pooled_over_the_seeds_that_all_have_and_a_setting_alone_has_its_own():
    values = [{0: 1.0, 1: 2.0, 2: 4.0}, {0: 3.0, 1: 5.0}, {0: 0.0, 1: 6.0, 3: 9.0}]
    measured = [Measured(str(n), "", own, (2,) * (2 not in own)) for n, own in enumerate(values)]
    rows = compare("validation.loss", measured, [None] * 3).rows
    by_hand = np.mean([[own[seed] for own in values] for seed in (0, 1)], axis=1)
    assert pooled("validation.loss", rows) == interval("validation.loss", by_hand)
    assert pooled("validation.loss", rows[:1]) == rows[0].value
    positive = [Measured(one.setting, "", {seed: value + 1 for seed, value in one.values.items()}) for one in measured]
    ratios = pooled("validation.perplexity", compare("validation.perplexity", positive, [None] * 3).rows)
    assert ratios.mean == pytest.approx(np.exp(np.mean(np.log(1 + np.array([[1, 3, 0], [2, 5, 6]])))))
    nothing = compare("validation.loss", [measured[0], Measured("lost", lost=(0,))], [None] * 2).rows
    assert pooled("validation.loss", nothing) is None


@pytest.mark.parametrize(("name", "best"), [("validation.loss", {1, 3}), ("validation.bleu", {2}), ("*entropy", set())])
def test_the_best_share_a_mean_and_what_is_missing_is_never_best(name, best):
    assert best_of(name, [None, Interval(1.0), Interval(5.0), Interval(1.0)]) == best
    assert best_of(name, [None]) == set()
