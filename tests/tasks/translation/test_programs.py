"""A translator's programs: attention whatever the padding, and what need not be installed."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translators import build

from attention_jax.data.config import DataConfig
from attention_jax.data.sentences import Sentences
from attention_jax.errors import UserError
from attention_jax.tasks.translation.measuring import bleu_tokens
from attention_jax.tasks.translation.model import init
from attention_jax.tasks.translation.programs import translator
from attention_jax.tasks.translation.translating import Trained, attention
from configs.nmt import get_config


def test_what_bleu_counts_need_not_be_installed_to_translate(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    config = get_config("bahdanau,embedded")
    config.evaluate.bleu_tokens = "spacy"
    assert translator(build("bahdanau"), config).translate
    with pytest.raises(UserError, match="pip install 'spacy"):
        bleu_tokens(config)


@pytest.mark.parametrize("name", ["luong_concat", "transformer_small"])
def test_every_layers_and_heads_attention_is_that_of_the_sentence_alone(name):
    model, config = build(name, layers=1, encoder_layers=2, decoder_layers=1), get_config(f"{name},embedded")
    variables, pairs = init(model, jax.random.key(0)), [([4, 5, 6, 7, 2], [7, 8, 2]), ([9, 2], [4, 4, 5, 6, 6, 2])]
    source, target = (Sentences.join(side) for side in zip(*pairs, strict=True))
    trained = Trained(translator(model, config), (variables,), None, DataConfig(**config.data))
    for found, (read, written) in zip(attention(trained, source, target), pairs, strict=True):
        before = jnp.array([[1, *written[:-1]]])
        arguments = (jnp.array([read]), jnp.array([len(read)]), before)
        alone = model.apply(variables, *arguments, method="attention")
        assert found.keys() == alone.keys()
        for kind, weights in found.items():
            np.testing.assert_allclose(weights, alone[kind].weights[0], rtol=1e-4, atol=1e-6)
