"""Every normalizer: weights none of which is negative, whatever is masked; exact thresholds and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attention_jax.ops.masking import masked_softmax
from attention_jax.ops.normalizing import (
    NORMALIZERS,
    entmax15,
    make_normalizer,
    sigmoid,
    sink_softmax,
    soft_cap,
    sparsemax,
    top_k_softmax,
)

SCORES = 3 * jax.random.normal(jax.random.key(0), (2, 5, 9))
MASK = jnp.arange(9)[None] < jnp.array([9, 4, 1, 0, 7])[:, None]
SUM_TO_ONE = ("softmax", "sum", "sparsemax", "entmax15", "top_k", "softcap")


def weights_of(name, scores=SCORES, mask=MASK):
    return normalized(name, scores, mask)


@functools.partial(jax.jit, static_argnums=0)
def normalized(name, scores, mask):
    return NORMALIZERS[name].apply(jnp.abs(scores) if name == "sum" else scores, mask)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_weights_are_none_of_them_negative_and_zero_where_masked(name):
    weights = np.asarray(weights_of(name))
    assert (weights >= 0).all()
    np.testing.assert_array_equal(np.where(MASK, 0, weights), 0)
    total = weights.sum(-1)
    if name in SUM_TO_ONE:
        np.testing.assert_allclose(total, np.broadcast_to(MASK.any(-1), total.shape), rtol=1e-5)
    elif "sink" in name:
        assert (total < 1).all()


@pytest.mark.parametrize("name", NORMALIZERS)
def test_what_is_masked_has_no_influence_whatever_it_holds(name):
    poisoned = jnp.where(MASK, SCORES, 1e9)
    np.testing.assert_array_equal(weights_of(name, poisoned), weights_of(name))


@pytest.mark.parametrize("name", NORMALIZERS)
def test_gradients_are_those_of_finite_differences_and_finite_where_nothing_is_allowed(name):
    check_grads(lambda a: weights_of(name, a), (SCORES[0],), order=1, modes=["rev"], rtol=0.05, atol=0.05, eps=1e-3)
    gradient = jax.grad(lambda a: jnp.sum(weights_of(name, a) ** 2))(SCORES)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[:, 3], 0)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_bfloat16_is_rounded_once_at_the_end(name):
    half = SCORES.astype(jnp.bfloat16)
    found, exact = weights_of(name, half), weights_of(name, half.astype(jnp.float32))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize("name", [name for name in NORMALIZERS if name != "sum"])
def test_large_scores_overflow_nothing(name):
    assert np.isfinite(weights_of(name, 1e4 * SCORES)).all()


def projected(z):
    """The nearest distribution to z, by trying every size of its support."""
    ordered = np.sort(z)[::-1]
    for size in range(len(z), 0, -1):
        threshold = (ordered[:size].sum() - 1) / size
        if ordered[size - 1] > threshold:
            return np.maximum(z - threshold, 0)


def test_sparsemax_is_the_projection_onto_distributions():
    z = np.asarray(SCORES[0], np.float64)
    np.testing.assert_allclose(sparsemax(SCORES[0]), [projected(row) for row in z], atol=1e-5)


def test_entmax_maximises_what_it_is_defined_by():
    """p·z + H(p), H = 4/3 Σ (p − p^1.5): no distribution nearby does better (Peters et al. 2019, eq. 6)."""
    z = np.asarray(SCORES[0, 0], np.float64)
    best = np.asarray(entmax15(SCORES[0, 0][None])[0], np.float64)
    height = lambda p: p @ z + 4 / 3 * np.sum(p - p**1.5)  # noqa: E731
    draw = np.random.default_rng(0)
    for _ in range(200):
        other = draw.dirichlet(np.ones(len(z)))
        assert height(0.99 * best + 0.01 * other) <= height(best) + 1e-6


def test_equal_scores_share_alike():
    for name in SUM_TO_ONE:
        np.testing.assert_allclose(weights_of(name, jnp.ones((1, 5, 9)), None), 1 / 9, rtol=1e-5)


def test_sigmoid_counts_the_keys_that_are_allowed():
    weights = sigmoid(jnp.zeros((1, 6)), jnp.arange(6)[None] < 3)
    np.testing.assert_allclose(weights[0], [1 / (1 + 3)] * 3 + [0] * 3, rtol=1e-6)


def test_a_sink_is_one_more_key_without_a_value():
    with_sink = masked_softmax(jnp.concatenate([SCORES, jnp.full((2, 5, 1), 1.5)], -1))[..., :-1]
    np.testing.assert_allclose(sink_softmax(SCORES, None, 1.5), with_sink, rtol=1e-5)
    np.testing.assert_allclose(sink_softmax(SCORES, None, -1e9), masked_softmax(SCORES), rtol=1e-5)
    heads = jnp.array([0.5, -2.0]).reshape(2, 1, 1)
    gradient = jax.grad(lambda s: jnp.sum(sink_softmax(SCORES, MASK, s) ** 2))(heads)
    assert (gradient < 0).all()


def test_top_k_is_softmax_over_the_highest_and_over_all_where_there_are_no_more():
    lowest = np.sort(SCORES, -1)[..., -3:-2]
    np.testing.assert_allclose(top_k_softmax(SCORES, k=3), masked_softmax(SCORES, lowest <= SCORES), rtol=1e-6)
    np.testing.assert_allclose(top_k_softmax(SCORES, MASK, k=99), masked_softmax(SCORES, MASK), rtol=1e-6)


def test_a_cap_is_never_left_and_far_from_it_nothing_changes():
    assert np.abs(soft_cap(100 * SCORES, 5.0)).max() <= 5
    np.testing.assert_allclose(soft_cap(0.01 * SCORES, 50.0), 0.01 * SCORES, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max", "normalize='max': choose one of softmax, sum, sigmoid"),
        ("top_k:k=0", "normalize='top_k:k=0': k=0: needs a whole number, 1 or more"),
        ("top_k:k=True", "k=True: needs a whole number, 1 or more"),
        ("softcap:cap=-1", "cap=-1: needs a number more than 0"),
        ("softcap:cap=1e999", "cap=inf: needs a number more than 0, and finite"),
        ("softmax:k=2", "normalize='softmax:k=2': has no option 'k'"),
    ],
)
def test_a_name_or_an_option_that_is_not_known_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        make_normalizer(text)
