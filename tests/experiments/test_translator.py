"""A translator's programs: padding does not matter to the loss, nor what BLEU counts to translating."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translators import build

from attention_jax.errors import UserError
from attention_jax.ops.dropout import Dropout
from configs.nmt import get_config
from experiments._translator import bleu_tokens, init, loss, translator

WORDS = jnp.array([[4, 5, 6, 2], [7, 8, 2, 0]])


@pytest.mark.parametrize("name", ["bahdanau", "transformer, batch norm"])
def test_padding_changes_neither_the_training_loss_nor_what_a_batch_norm_learns(name):
    model = build(name, layers=1, encoder_layers=1, decoder_layers=1)
    variables = init(model, jax.random.key(0))

    def trained_on(padding):
        batch = dict.fromkeys(("source", "target"), jnp.pad(WORDS, ((0, 0), (0, padding))))
        return loss(model, variables, batch, Dropout(jax.random.key(1), 0.0), 0.1)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), trained_on(0), trained_on(3))


def test_what_bleu_counts_need_not_be_installed_to_translate(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    config = get_config("bahdanau,embedded")
    config.evaluate.bleu_tokens = "spacy"
    assert translator(build("bahdanau"), config).translate
    with pytest.raises(UserError, match="pip install 'spacy"):
        bleu_tokens(config)
