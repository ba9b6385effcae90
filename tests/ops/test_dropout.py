"""The hashed dropout mask: its mean, its independence, its indifference to blocking."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.dropout import Dropout, drop, hashed, keep, multiplier

SHAPE = (8, 4, 64, 64)
N = np.prod(SHAPE)
FOUR_SIGMA = 4 / np.sqrt(N)


def kept(seed, rate=0.5, shape=SHAPE):
    return np.asarray(keep(Dropout(jax.random.key(seed), rate), shape))


def correlation(a, b):
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_the_share_that_is_dropped_is_the_rate(rate):
    assert abs(1 - kept(0, rate).mean() - rate) <= FOUR_SIGMA


def test_the_expectation_is_the_input():
    dropped = drop(jnp.ones(SHAPE), Dropout(jax.random.key(0), 0.3))
    assert abs(float(dropped.mean()) - 1) < 2 * FOUR_SIGMA
    assert set(np.unique(np.asarray(dropped)).round(5)) == {0, np.float32(1 / 0.7).round(5)}


def test_masks_of_neighbouring_keys_and_steps_are_independent():
    key = jax.random.key(3)
    steps = [np.asarray(keep(Dropout(jax.random.fold_in(key, t), 0.5), SHAPE)) for t in range(4)]
    seeds = [kept(seed) for seed in range(4)]
    for masks in (steps, seeds):
        for i in range(4):
            for j in range(i):
                assert abs(correlation(masks[i], masks[j])) < FOUR_SIGMA


@pytest.mark.parametrize("axis", range(4))
def test_neighbouring_indices_are_independent(axis):
    for lag in (1, 2):
        size = SHAPE[axis]
        mask = kept(0)
        ahead, behind = np.take(mask, range(lag, size), axis), np.take(mask, range(size - lag), axis)
        assert abs(correlation(ahead, behind)) < 1.3 * FOUR_SIGMA


def test_rows_and_columns_drop_as_often_as_independent_ones_would():
    mask = kept(1, 0.5, (256, 256))
    for axis in (0, 1):
        assert mask.mean(axis).std() == pytest.approx(0.5 / np.sqrt(256), rel=0.2)


def test_every_bit_is_fair():
    bits = np.asarray(hashed(jax.random.key(0), (256, 256)))
    for bit in range(32):
        assert abs(((bits >> bit) & 1).mean() - 0.5) < 2.5 / 256


def test_a_block_draws_the_part_of_the_whole_that_it_is():
    dropout = Dropout(jax.random.key(0), 0.4)
    whole = keep(dropout, (2, 3, 16, 16))
    block = jax.jit(lambda first: keep(dropout, (2, 3, 4, 8), start=(first, 8)))(4)
    np.testing.assert_array_equal(block, whole[..., 4:8, 8:16])


def test_the_rate_and_the_key_may_be_traced_and_mapped():
    keys = jax.random.split(jax.random.key(0), 3)
    rates = jnp.array([0.0, 0.2, 0.8])
    masks = jax.jit(jax.vmap(lambda key, rate: keep(Dropout(key, rate), (64, 64))))(keys, rates)
    np.testing.assert_allclose(1 - masks.mean((1, 2)), rates, atol=0.03)
    np.testing.assert_array_equal(masks[1], keep(Dropout(keys[1], 0.2), (64, 64)))


def test_no_dropout_is_the_identity_and_a_rate_of_one_is_zero():
    x = jnp.arange(6.0)
    assert drop(x, None) is x
    assert not multiplier(Dropout(jax.random.key(0), 1.0), (100,)).any()


def test_half_precision_keeps_the_expectation():
    dropped = drop(jnp.linspace(1, 2, 10_000, dtype=jnp.bfloat16), Dropout(jax.random.key(0), 0.15))
    assert dropped.dtype == jnp.bfloat16
    kept = np.asarray(dropped != 0)
    before = np.linspace(1, 2, 10_000)[kept].mean() / 0.85
    assert np.asarray(dropped, np.float64)[kept].mean() == pytest.approx(before, rel=5e-4)  # 1 / .85 rounds by 3e-3


def test_the_gradient_is_the_mask():
    dropout = Dropout(jax.random.key(0), 0.5)
    gradient = jax.grad(lambda x: drop(x, dropout).sum())(jnp.ones(100))
    np.testing.assert_array_equal(gradient, multiplier(dropout, (100,)))
