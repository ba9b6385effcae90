"""A language model's loss on algorithmic tasks: what padding may change, and what it may not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import drawn

from attention_jax.data.algorithmic import example, size
from attention_jax.errors import UserError
from attention_jax.ops.dropout import Dropout
from attention_jax.tasks.language_model.algorithmic import _as_texts
from attention_jax.tasks.language_model.model import draw_positions, evaluation_loss, init, loss
from attention_jax.tasks.language_model.session import Session
from configs.positional_encoding import get_config
from experiments.positional_encoding import OPENERS

LONGEST = 5


def texts_of(length):
    """Texts with inputs of 2 and 4 tokens, of `length` tokens with their padding."""
    draw = functools.partial(example, "copy", longest=LONGEST, symbols=6)
    drawn = jax.vmap(draw)(jax.random.split(jax.random.key(0), 2), jnp.array([2, 4]))
    return jax.tree.map(lambda side: side[:, :length], _as_texts(drawn))


@pytest.mark.parametrize(
    ("norm", "mixer", "positions"),
    [
        *((norm, mixer, "none") for norm in ("layer", "batch") for mixer in ("attention", "gru", "convolution")),
        ("layer", "attention", "randomized_sinusoidal:longest=100"),
    ],
)
def test_padding_changes_neither_the_training_loss_nor_what_a_batch_norm_learns(norm, mixer, positions):
    config = get_config("smoke")
    config.model.update(norm=norm, mixer=mixer, positions=positions, layers=1, norm_first=True)
    model = Session(config, None, OPENERS).model
    variables = drawn(functools.partial(init, model))

    def trained_on(length):
        return trained(variables, texts_of(length), Dropout(jax.random.key(1), 0.0))

    trained = jax.jit(lambda *arguments: loss(model, *arguments, 0.1))
    tight, padded = trained_on(size(4)), trained_on(size(LONGEST))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), tight, padded)


@functools.cache
def randomized():
    """A model whose positions are drawn, and its variables."""
    config = get_config("smoke")
    config.model.update(positions="randomized_sinusoidal:longest=100", layers=1)
    model = Session(config, None, OPENERS).model
    return model, drawn(functools.partial(init, model))


def test_neither_padding_nor_other_rows_change_the_positions_and_the_loss_of_an_evaluation():
    model, variables = randomized()
    losses = jax.jit(functools.partial(evaluation_loss, model))
    tight, padded = texts_of(size(4)), texts_of(size(LONGEST))
    whole = losses(variables, tight).total
    np.testing.assert_allclose(losses(variables, padded).total, whole, rtol=1e-5)
    rows = [jax.tree.map(lambda side, row=row: side[row][None], tight) for row in (1, 0)]
    np.testing.assert_allclose(sum(losses(variables, row).total for row in rows), whole, rtol=1e-5)
    left = jax.tree.map(lambda side: jnp.pad(side, ((0, 0), (2, 0))), tight)
    shifted, own = (draw_positions(model, texts.tokens, is_text=texts.is_text) for texts in (left, tight))
    np.testing.assert_array_equal(shifted[:, 2:], own)


def test_packed_texts_have_positions_of_their_own_from_the_whole_range():
    model, _ = randomized()
    segments = jnp.array([[1, 1, 1, 2, 2, 2, 3, 0]] * 4000)
    tokens = jax.random.randint(jax.random.key(0), segments.shape, 4, 10)
    found = np.asarray(jax.jit(functools.partial(draw_positions, model))(tokens, segments))
    first, second, third = found[:, :3], found[:, 3:6], found[:, 6]
    assert all((np.diff(text) > 0).all() for text in (first, second))
    assert (first != second).any(axis=1).all()
    for text in (first.mean(axis=1), second.mean(axis=1), third):  # each is spread over 0 … 99
        assert abs(text.mean() - 49.5) < 2


def test_a_batch_norm_learns_the_moments_of_each_text_alone():
    config = get_config("smoke")
    config.model.update(norm="batch", positions="none", layers=1, norm_first=True)
    model = Session(config, None, OPENERS).model
    variables = jax.jit(functools.partial(init, model))(jax.random.key(0))
    texts = texts_of(size(LONGEST))
    _, changed = jax.jit(lambda *asked: loss(model, *asked, 0.1))(variables, texts, Dropout(jax.random.key(1), 0.0))
    words = np.concatenate([row[: size(length) - 1] for row, length in zip(texts.tokens, (2, 4), strict=True)])
    read = np.asarray(variables["params"]["embedding"]["embedding"], np.float64)[words] * np.sqrt(model.layer.width)
    first = changed["batch_stats"]["layer_0"]["residuals_0"]["norm"]
    np.testing.assert_allclose(first["mean"], 0.01 * read.mean(0), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(first["variance"], 0.99 + 0.01 * read.var(0), rtol=1e-4)


def test_a_backend_by_its_name_is_refused_where_nothing_attends():
    config = get_config("smoke")
    config.model.update(mixer="gru", positions="none", backend="chunked")
    said = "config.model.backend='chunked': mixer='gru' has no attention to compute. Set backend='auto'"
    with pytest.raises(UserError, match=said):
        Session(config, None, OPENERS).model  # noqa: B018
    for several in ("chunked/auto", "flex/auto"):
        config.model.backend = several
        assert Session(config, None, OPENERS).model.backend == "reference"
