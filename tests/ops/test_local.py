"""Local attention: its window, its clipping, its centre's gradient (its equations are tested with Luong's model)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.attention import Relative
from attention_jax.ops.local import gaussian_falloff, predicted_centre
from attention_jax.ops.masking import combine, near_mask, valid_lens_mask
from attention_jax.ops.pooling import attend_with_weights

KEYS = jax.random.split(jax.random.key(0), 5)
QUERY, KEY, VALUE = (jax.random.normal(k, (2, 3, n, 4)) for k, n in zip(KEYS, (5, 9, 9), strict=False))
CENTRE = 8 * jax.random.uniform(KEYS[3], (2, 3, 5))


def local(centre, window, mask=None, is_gaussian=False):
    relative = Relative()
    if is_gaussian:
        relative = Relative(falloff=gaussian_falloff, params=window, queries=centre, keys=jnp.arange(9.0))
    return attend_with_weights(QUERY, KEY, VALUE, mask=combine(near_mask(centre, window, 9), mask), relative=relative)


def test_a_window_over_everything_is_global_attention():
    expected = attend_with_weights(QUERY, KEY, VALUE)
    found = local(CENTRE, 9)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_nothing_outside_the_window_or_the_sentence_is_read():
    mask = valid_lens_mask(jnp.array([[9, 6, 1]] * 2), 9)
    _, weights = local(CENTRE, 2, mask)
    for index in np.ndindex(2, 3, 5):
        for key in range(9):
            inside = abs(key - CENTRE[index]) <= 2 and key < (9, 6, 1)[index[1]]
            assert (weights[(*index, key)] > 0) == inside


def test_the_gaussian_gives_a_gradient_to_the_centre():
    def total(centre):
        return jnp.sum(local(centre, 3, is_gaussian=True)[0] ** 2)

    assert np.abs(jax.jit(jax.grad(total))(CENTRE)).min() > 0


def test_a_predicted_centre_lies_within_the_sentence():
    lengths = jnp.array([[9, 6, 1]] * 2)
    w_p, v_p = 9 * jax.random.normal(KEYS[4], (4, 7)), jnp.ones(7)
    centre = predicted_centre(QUERY, lengths, w_p, v_p)
    assert centre.shape == (2, 3, 5)
    assert (centre >= 0).all()
    assert (centre <= lengths[..., None]).all()


def test_an_empty_window_is_refused():
    with pytest.raises(ValueError, match="window=0: needs 1 or more"):
        near_mask(CENTRE, 0, 9)
