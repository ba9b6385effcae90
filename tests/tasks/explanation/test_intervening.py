"""Other weights in place of attention's: what they are, and what they may do to predictions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translators import trained

from attention_jax.ops.divergence import jensen_shannon
from attention_jax.tasks.explanation.importance import weights_of
from attention_jax.tasks.explanation.intervening import DRAWS, KIND, adversary, intervene

SOURCE = jnp.array([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0]])
TARGET = jnp.array([[4, 5, 6, 2], [7, 8, 2, 0]])
BATCH = {"source": SOURCE, "target": TARGET}
MODELS = ["luong_general", pytest.param("transformer_book", marks=pytest.mark.slow)]
STEPS = 60
VALID = np.asarray(SOURCE != 0)[:, None, None, None]


@functools.cache
def program(make, *arguments):
    return jax.jit(functools.partial(make, *arguments))


def changed(name, model, variables):
    return program(intervene, model)(variables, BATCH, jax.random.key(0))[name]


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return trained(request.param)


@pytest.fixture(scope="module")
def own(model):
    module, variables = model
    return np.asarray(program(weights_of, module)(variables, BATCH)[KIND])


@pytest.mark.parametrize("name", DRAWS)
def test_weights_in_place_of_others_sum_to_one_over_the_words_of_the_source(model, own, name):
    weights = np.asarray(changed(name, *model).weights)
    assert weights.shape == own.shape
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert not weights[~np.broadcast_to(VALID, weights.shape)].any()


def test_permuted_weights_are_the_same_in_another_order(model, own):
    weights = np.asarray(changed("permuted", *model).weights)
    np.testing.assert_allclose(np.sort(weights), np.sort(own), atol=1e-6)
    assert not np.allclose(weights, own)


def test_the_largest_weight_is_what_is_removed_and_another_one_leaves_it(model, own):
    largest = own.argmax(axis=-1)[..., None]
    without, another = (np.asarray(changed(name, *model).weights) for name in ("without_highest", "without_another"))
    assert not np.take_along_axis(without, largest, axis=-1).any()
    assert (np.take_along_axis(another, largest, axis=-1) >= np.take_along_axis(own, largest, axis=-1)).all()
    assert ((another == 0) & (own > 0)).sum() == np.prod(own.shape[:-1])


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("words", [1, 2, 4])
def test_a_row_whose_weight_is_all_on_one_word_keeps_its_sum(name, words):
    weights, valid = jnp.array([0.0, 1, 0, 0, 0]), jnp.array([True] + [1 <= n < words for n in range(1, 5)])
    weights = jnp.roll(weights, -1) if words == 1 else weights
    found = np.asarray(DRAWS[name](weights, valid, jax.random.key(1)))
    if words == 1 and name == "without_highest":
        np.testing.assert_array_equal(found, 0)  # nothing is left
        return
    assert found.sum() == pytest.approx(1)
    assert not found[~np.asarray(valid)].any()
    if name == "without_highest":
        np.testing.assert_allclose(found, np.where(weights == 1, 0, valid / (words - 1)), atol=1e-6)
    if name == "without_another":
        np.testing.assert_array_equal(found, weights)


def test_what_is_left_of_a_row_with_one_large_weight_sums_to_one():
    found = DRAWS["without_highest"](jnp.array([1.0, 3e-35, 1e-35]), jnp.ones(3, bool), jax.random.key(0))
    np.testing.assert_allclose(found, [0, 0.75, 0.25], rtol=1e-5)


def searched(model, variables, epsilon):
    return program(adversary, model, STEPS, 0.1)(variables, BATCH, epsilon, jax.random.key(0))


@pytest.mark.parametrize("epsilon", [0.01, 0.3])
def test_an_adversary_moves_no_words_prediction_by_more_than_epsilon(model, epsilon):
    found = searched(*model, epsilon)
    is_word = np.asarray(TARGET != 0)
    assert np.asarray(found.total_variation)[is_word].max() <= epsilon + 1e-6
    np.testing.assert_allclose(found.weights.sum(axis=-1), 1, atol=1e-5)
    assert not np.asarray(found.weights)[~np.broadcast_to(VALID, found.weights.shape)].any()


def test_an_adversary_that_may_do_all_goes_far_and_one_that_may_do_nothing_stays(model, own):
    far, still = (np.asarray(jensen_shannon(own, searched(*model, epsilon).weights)) for epsilon in (1.0, 0.0))
    assert far[0].mean() > 0.4
    np.testing.assert_allclose(still, 0, atol=1e-6)
