"""Position encodings by their properties."""

import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.positions import ENCODINGS, sinusoidal, sinusoidal_table


def test_a_shift_rotates_every_pair_of_a_sinusoid():
    """(sin(i + δ)ω, cos(i + δ)ω) is (sin iω, cos iω) turned by δω, for every frequency (§3.5)."""
    width, shift = 16, 7
    table = np.asarray(sinusoidal_table(40, width), np.float64)
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    for pair, omega in enumerate(frequencies):
        cos, sin = np.cos(shift * omega), np.sin(shift * omega)
        turned = table[:-shift, 2 * pair : 2 * pair + 2] @ np.array([[cos, -sin], [sin, cos]])
        np.testing.assert_allclose(turned, table[shift:, 2 * pair : 2 * pair + 2], atol=1e-5)


def test_positions_are_explicit_and_any_batch_axes_go():
    positions = jnp.array([[[3, 0, 12]], [[1, 1, 2]]])
    np.testing.assert_array_equal(sinusoidal(positions, 8), sinusoidal_table(13, 8)[positions])


def test_what_is_added_does_not_depend_on_what_it_is_added_to():
    add = ENCODINGS["sinusoidal"].add
    x, positions = jnp.ones((2, 3, 8)), jnp.array([[0, 1, 2]])
    np.testing.assert_allclose(add(None, x, positions) - x, add(None, 0 * x, positions), atol=1e-6)
    assert ENCODINGS["none"].add is None


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="width=7: sines and cosines come in pairs"):
        sinusoidal_table(3, 7)
