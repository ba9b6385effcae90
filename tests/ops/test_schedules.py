"""Schedules at the points that define them, with traced numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.schedules import SCHEDULES

HYPER = {"learning_rate": 2.0, "warmup_steps": 10.0, "decay_steps": 110.0, "final_fraction": 0.1}


def rates(name, steps, hyper=HYPER):
    return jax.jit(lambda steps, hyper: jax.vmap(lambda t: SCHEDULES[name](t, hyper))(steps))(jnp.asarray(steps), hyper)


@pytest.mark.parametrize("name", SCHEDULES)
def test_warm_up_is_a_straight_line_to_the_peak(name):
    np.testing.assert_allclose(rates(name, range(10)), 0.2 * np.arange(1, 11), rtol=1e-5)


@pytest.mark.parametrize(("name", "half", "end"), [("constant", 2.0, 2.0), ("linear", 1.1, 0.2), ("cosine", 1.1, 0.2)])
def test_the_middle_and_the_end_of_the_decay(name, half, end):
    np.testing.assert_allclose(rates(name, [60, 110, 1000]), [half, end, end], rtol=1e-5)


def test_inverse_square_root():
    np.testing.assert_allclose(rates("inverse_sqrt", [39]), [1.0], rtol=1e-5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_warm_up_the_first_step_has_the_peak(name):
    np.testing.assert_allclose(rates(name, [0], HYPER | {"warmup_steps": 0.0}), [2.0], rtol=1e-5)
