"""A translation model: its loss whatever the padding, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import translators
from support import drawn

from attention_jax.errors import UserError
from attention_jax.ops.dropout import Dropout
from attention_jax.tasks.translation.model import build, init, loss
from configs.nmt import get_config

WORDS = jnp.array([[4, 5, 6, 2], [7, 8, 2, 0]])


@pytest.mark.parametrize("name", ["bahdanau", "transformer, batch norm, learned and fire"])
def test_padding_changes_neither_the_training_loss_nor_what_a_batch_norm_learns(name):
    model = translators.build(name, **translators.ONE_LAYER)
    variables, training_loss = drawn(functools.partial(init, model)), jax.jit(functools.partial(loss, model))

    def trained_on(padding):
        batch = dict.fromkeys(("source", "target"), jnp.pad(WORDS, ((0, 0), (0, padding))))
        return training_loss(variables, batch, Dropout(jax.random.key(1), 0.0), 0.1)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), trained_on(0), trained_on(3))


def test_one_table_for_all_embeddings_needs_one_vocabulary_even_where_two_have_one_size():
    config = get_config("transformer_small,embedded")
    config.model.kwargs.shared = "all"
    with pytest.raises(UserError, match="config.model.kwargs.shared='all': needs one vocabulary of both languages"):
        build(config, 50, 50)
    config.data.joint_vocabulary = True
    assert build(config, 50, 50)
