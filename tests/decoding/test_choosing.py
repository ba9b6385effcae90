"""Choosing words: as JAX's own argmax and top_k choose, equal scores included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.decoding.choosing import GROUP, likeliest, top_k, without
from attention_jax.decoding.sampling import keep_likeliest

SIZES = (1, 7, GROUP, 8 * GROUP, 12 * GROUP + 5, 50 * GROUP)


def scores_of(size, kind):
    draw = np.random.default_rng(size)
    drawn = {
        "different": draw.normal(size=(3, 2, size)),
        "many equal": draw.integers(0, 3, (3, 2, size)),
        "all equal": np.zeros((3, 2, size)),
        "mostly impossible": np.where(draw.random((3, 2, size)) < 0.9, -np.inf, draw.normal(size=(3, 2, size))),
    }
    return jnp.asarray(drawn[kind], jnp.float32)


KINDS = ("different", "many equal", "all equal", "mostly impossible")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_the_largest_scores_are_those_of_a_stable_sort(size, kind):
    scores = scores_of(size, kind)
    for count in (1, 4, 10):
        largest, index = top_k(scores, count)
        expected = np.argsort(-np.asarray(scores), axis=-1, kind="stable")[..., :count]
        np.testing.assert_array_equal(index, expected)
        np.testing.assert_array_equal(largest, np.take_along_axis(np.asarray(scores), expected, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_likeliest_word_is_the_first_with_the_largest_logit(kind):
    logits = scores_of(40, kind)[0]
    np.testing.assert_array_equal(likeliest(logits, jnp.int32(0)), np.argmax(logits, axis=-1))


def test_a_word_that_is_never_chosen_has_no_score():
    found = without(jnp.zeros((2, 4)), 1, 3)
    np.testing.assert_array_equal(found, [[0, -np.inf, 0, -np.inf]] * 2)


def test_logits_that_are_not_numbers_choose_a_word_of_the_vocabulary():
    assert int(jax.jit(likeliest)(jnp.full((1, 5), jnp.nan), jnp.int32(0))[0]) == 4


def test_every_word_may_be_drawn_where_none_is_left_out(random):
    logits = jnp.asarray(random.normal(size=(4, 32_000)) * 3, jnp.float32)
    np.testing.assert_array_equal(keep_likeliest(logits, 0, 1.0), logits)  # sums of their probabilities exceed 1
