"""Draws as a model reads them."""

import jax
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from attention_jax.errors import UserError
from attention_jax.tasks.in_context.drawing import check, drawn, prompts_of, training_prompts, vectors_of
from attention_jax.tasks.in_context.held_out import held_out
from configs import kernel_regression


def data(**changes):
    found = kernel_regression.get_config("in_context_smoke").data
    found.update(changes)
    return found


KEYS = np.arange(1.0, 7.0, dtype=np.float32).reshape(1, 3, 2)
VALUES = np.array([[[10], [20], [30]]], np.float32)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("apart", [[1, 2, 0, 0], [0, 0, 10, 1], [3, 4, 0, 0], [0, 0, 20, 1], [5, 6, 0, 0]]),
        ("joined", [[1, 2, 0, 0], [1, 2, 10, 1], [3, 4, 0, 0], [3, 4, 20, 1], [5, 6, 0, 0]]),
    ],
)
def test_keys_and_values_stand_in_turn_and_the_last_key_has_no_value(tokens, expected):
    np.testing.assert_array_equal(vectors_of(data(tokens=tokens), KEYS, VALUES)[0], expected)


def test_a_training_prompt_answers_every_key_with_its_noisy_value():
    asked = data(pairs=3, batch=5)
    vectors, answers = jax.jit(lambda key: training_prompts(asked, key))(jax.random.key(0))
    assert vectors.shape == (5, 7, 4)
    assert answers.shape == (5, 4)
    np.testing.assert_array_equal(vectors[:, 1::2, 2], answers[:, :-1])


def test_no_held_out_draw_is_trained_on_even_with_one_pair():
    config = kernel_regression.get_config("in_context_smoke")
    config.data.pairs, config.evaluate.estimators, config.evaluate.examples = 1, ("ridge",), 32
    found = held_out(FrozenConfigDict(config.data), FrozenConfigDict(config.evaluate), 1).vectors
    key = jax.random.fold_in(jax.random.key(config.evaluate.seed), 1)
    draw = jax.jit(lambda step: training_prompts(config.data, jax.random.fold_in(key, step)).vectors)
    steps = [draw(step) for step in range(32)]
    trained, measured = (
        {key.tobytes() for key in np.concatenate(one[:, ::2])} for one in (np.concatenate(steps), found)
    )
    assert not trained & measured


@pytest.mark.parametrize("function", ["linear", "smooth"])
def test_a_held_out_prompt_has_the_pairs_of_its_draw_and_then_its_query(function):
    asked = data(function=function)
    draws = jax.jit(jax.vmap(lambda key: drawn(asked, key, 3, 2)))(jax.random.split(jax.random.key(0), 4))
    vectors = prompts_of(asked, draws)
    np.testing.assert_array_equal(vectors[:, 0:6:2, :2], draws.key)
    np.testing.assert_array_equal(vectors[:, 1::2, 2], draws.value[..., 0])
    np.testing.assert_array_equal(vectors[:, 6, :2], draws.query[:, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"function": "cubic"}, r"config.data.function='cubic': choose one of linear, smooth"),
        ({"tokens": "mixed"}, r"config.data.tokens='mixed': choose one of apart, joined"),
        ({"pairs": 0}, r"config.data.pairs=0: needs 1 or more"),
        ({"noise": -1.0}, r"config.data.noise=-1.0: needs 0 or more"),
    ],
)
def test_values_that_cannot_be_used_are_refused_by_key(changes, message):
    config = kernel_regression.get_config("in_context_smoke")
    config.data.update(changes)
    with pytest.raises(UserError, match=message):
        check(config)
