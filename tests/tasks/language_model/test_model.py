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
from attention_jax.tasks.language_model.model import init, loss
from attention_jax.tasks.language_model.session import Session
from configs.positional_encoding import get_config
from experiments.positional_encoding import OPENERS

LONGEST = 5


def texts_of(length):
    """Texts with inputs of 2 and 4 tokens, of `length` tokens with their padding."""
    draw = functools.partial(example, "copy", longest=LONGEST, symbols=6)
    drawn = jax.vmap(draw)(jax.random.split(jax.random.key(0), 2), jnp.array([2, 4]))
    return jax.tree.map(lambda side: side[:, :length], _as_texts(drawn))


@pytest.mark.parametrize("mixer", ["attention", "gru", "convolution"])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_padding_changes_neither_the_training_loss_nor_what_a_batch_norm_learns(norm, mixer):
    config = get_config("smoke")
    config.model.update(norm=norm, mixer=mixer, positions="none", layers=1, norm_first=True)
    model = Session(config, None, OPENERS).model
    variables = drawn(functools.partial(init, model))

    def trained_on(length):
        return trained(variables, texts_of(length), Dropout(jax.random.key(1), 0.0))

    trained = jax.jit(lambda *arguments: loss(model, *arguments, 0.1))
    tight, padded = trained_on(size(4)), trained_on(size(LONGEST))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), tight, padded)


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
    config.model.backend = "chunked/auto"
    assert Session(config, None, OPENERS).model.layer.mixer == "gru"
