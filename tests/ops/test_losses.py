"""Losses against float64 loops, as sums with their counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.losses import Sums, cross_entropy, squared_error


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_its_formula_in_nats(smoothing, random):
    logits, labels = random.normal(size=(3, 4, 7)), random.integers(0, 7, (3, 4))
    weights = random.random((3, 4)) < 0.6
    expected = 0.0
    for index in zip(*np.nonzero(weights), strict=True):
        log_p = logits[index] - np.log(np.exp(logits[index]).sum())
        target = np.full(7, smoothing / 7)
        target[labels[index]] += 1 - smoothing
        expected -= target @ log_p
    sums = cross_entropy(jnp.asarray(logits, jnp.float32), labels, jnp.asarray(weights), smoothing)
    np.testing.assert_allclose(sums.total, expected, rtol=1e-5)
    assert sums.count == weights.sum()


def test_the_gradients_are_those_of_the_formula(random):
    logits, labels = jnp.asarray(random.normal(size=(3, 7)), jnp.float32), random.integers(0, 7, 3)
    weights = jnp.array([True, False, True])

    def formula(logits, smoothing):
        target = (1 - smoothing) * jax.nn.one_hot(labels, 7) + smoothing / 7
        return -jnp.sum(weights[:, None] * target * jax.nn.log_softmax(logits))

    def loss(logits, smoothing):
        return cross_entropy(logits, labels, weights, smoothing).total

    for order in (jax.grad, jax.hessian):
        for number in (0, 1):
            found, wanted = (order(f, number)(logits, 0.1) for f in (loss, formula))
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_word_that_cannot_be_has_no_part_in_the_loss_of_another():
    logits = jnp.array([0.0, -jnp.inf, 1.0])
    value, gradient = jax.value_and_grad(lambda logits: cross_entropy(logits, jnp.array(2)).total)(logits)
    np.testing.assert_allclose(value, np.log(1 + np.exp(-1)), rtol=1e-6)
    np.testing.assert_allclose(gradient, [1 / (1 + np.e), 0, -1 / (1 + np.e)], rtol=1e-6)


def test_parts_of_a_batch_add_up(random):
    logits, labels = jnp.asarray(random.normal(size=(6, 5)), jnp.float32), random.integers(0, 5, 6)
    whole, first, second = (cross_entropy(logits[s], labels[s]) for s in (slice(None), slice(2), slice(2, None)))
    np.testing.assert_allclose(whole.total, first.total + second.total, rtol=1e-5)
    assert whole.count == first.count + second.count


def test_nothing_counted_has_mean_zero():
    assert Sums(jnp.zeros(()), jnp.zeros(())).mean() == 0


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"labels has shape \(3,\), needs \(2,\): logits are \(2, 5\)"):
        cross_entropy(jnp.ones((2, 5)), jnp.zeros(3, int))
    with pytest.raises(ValueError, match=r"prediction has shape \(2, 1\), needs \(2,\)"):
        squared_error(jnp.ones((2, 1)), jnp.ones(2))


@pytest.mark.parametrize("label", [-1, 5, -100])
def test_a_label_that_is_no_class_has_no_loss_but_where_it_is_left_out(label):
    logits, labels = jnp.zeros((2, 5)), jnp.array([1, label])
    assert jnp.isnan(cross_entropy(logits, labels).total)
    np.testing.assert_allclose(cross_entropy(logits, labels, labels == 1).mean(), np.log(5), rtol=1e-6)


def test_weights_that_are_not_boolean_are_refused():
    with pytest.raises(TypeError, match="weights has dtype float32, needs bool: True = counted"):
        cross_entropy(jnp.ones((2, 5)), jnp.zeros(2, int), jnp.ones(2))
