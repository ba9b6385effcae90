"""What a sweep says of its settings."""

import numpy as np
import pytest

from attention_jax.runs.answer import learning_curve

# t of 97.5% with two degrees of freedom
T = 4.302653


def test_a_learning_curve_is_the_mean_over_seeds_in_its_interval_whether_cells_have_one_seed_or_three():
    values = {100: (3.0, 5.0, 7.0), 200: (1.0, 2.0, 6.0)}
    lines = [
        {"step": step, "seed": seed, "train.loss": value} for step in values for seed, value in enumerate(values[step])
    ]
    by_cell = sorted(lines, key=lambda line: line["seed"])
    for order in (lines, by_cell):
        curve = learning_curve(order, "test.bleu")
        half = [T * np.std(values[step], ddof=1) / np.sqrt(3) for step in values]
        assert (curve.name, curve.steps) == ("train.loss", [100, 200])
        assert curve.means == pytest.approx([5.0, 3.0])
        assert np.subtract(curve.highs, curve.means) == pytest.approx(half, rel=1e-6)
        assert np.subtract(curve.means, curve.lows) == pytest.approx(half, rel=1e-6)


def test_a_step_that_a_seed_has_not_reached_is_not_on_the_curve():
    lines = [{"step": 1, "seed": seed, "loss": 1.0} for seed in (0, 1)] + [{"step": 2, "seed": 0, "loss": 0.0}]
    assert learning_curve(lines, "loss").steps == [1]
    assert learning_curve([], "loss").steps == []


def test_a_number_that_was_not_finite_is_not_on_the_curve():
    lines = [{"step": step, "seed": 0, "perplexity": value, "train.loss": 1.0} for step, value in ((1, None), (2, 9.0))]
    assert learning_curve(lines, "perplexity").steps == [2]
    assert learning_curve(lines[:1], "perplexity").steps == []
