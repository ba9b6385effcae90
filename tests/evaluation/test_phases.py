"""The step at which a curve rises most."""

import numpy as np
import pytest

from attention_jax.evaluation.phases import steepest_rise


def test_the_rise_of_a_step_function_is_where_it_jumps():
    steps = np.arange(0, 100, 10)
    step, height = steepest_rise(steps, np.where(steps > 42, 0.9, 0.1))
    assert step == pytest.approx(45)
    assert height == pytest.approx(0.8)


def test_a_longer_gap_between_measurements_is_no_steeper_for_it():
    assert steepest_rise([0, 10, 110], [0.0, 0.3, 0.9]).step == 5


def test_one_measurement_has_no_rise():
    with pytest.raises(ValueError, match="two measurements"):
        steepest_rise([10], [0.5])
