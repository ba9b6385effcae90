"""A translator's programs: attention whatever the padding, and what need not be installed."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled, drawn
from translators import INPUTS, LENGTHS, NAMES, ONE_LAYER, SOURCE, build, trained

from attention_jax.data.config import DataConfig
from attention_jax.data.sentences import Sentences
from attention_jax.errors import UserError
from attention_jax.modules.attention import Edit
from attention_jax.tasks.translation.measuring import bleu_tokens
from attention_jax.tasks.translation.model import init
from attention_jax.tasks.translation.programs import translator
from attention_jax.tasks.translation.translating import EVALUATION_TOKENS, FEW, Trained, attention, batches_of
from configs.nmt import get_config


def test_what_bleu_counts_need_not_be_installed_to_translate(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    config = get_config("bahdanau,embedded")
    config.evaluate.bleu_tokens = "spacy"
    assert translator(build("bahdanau"), config).translate
    with pytest.raises(UserError, match="pip install 'spacy"):
        bleu_tokens(config)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_aligns_where_its_decoder_attends_to_the_source_and_by_no_other_layer(name):
    model, config = build(name), get_config("bahdanau,embedded")
    show = functools.partial(model.init_with_output, method="attention")
    shown = jax.eval_shape(show, jax.random.key(0), SOURCE, LENGTHS, INPUTS)[0]
    assert (translator(model, config).alignment is not None) == ("cross" in shown)
    if "cross" in shown:
        config.evaluate.alignment_layer = shown["cross"].weights.shape[1]
        with pytest.raises(UserError, match="the decoder has"):
            translator(model, config)


@pytest.mark.parametrize("name", ["luong_concat", "transformer_small"])
def test_every_layers_and_heads_attention_is_that_of_the_sentence_alone(name):
    model, config = build(name, layers=1, encoder_layers=2, decoder_layers=1), get_config(f"{name},embedded")
    variables = drawn(functools.partial(init, model))
    pairs = [([4, 5, 6, 7, 2], [7, 8, 2]), ([9, 2], [4, 4, 5, 6, 6, 2])]
    source, target = (Sentences.join(side) for side in zip(*pairs, strict=True))
    opened = Trained(translator(model, config), (variables,), None, DataConfig(**config.data))
    for found, (read, written) in zip(attention(opened, source, target), pairs, strict=True):
        before = jnp.array([[1, *written[:-1]]])
        arguments = (jnp.array([read]), jnp.array([len(read)]), before)
        alone = compiled(model, "attention")(variables, *arguments)
        assert found.keys() == alone.keys()
        for kind, weights in found.items():
            np.testing.assert_allclose(weights, alone[kind].weights[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beams", [1, 2])
def test_a_translation_with_a_closed_gate_is_that_of_a_model_that_does_not_read_the_head(beams):
    module, variables = trained("transformer_small", **ONE_LAYER)
    config = get_config("transformer_small,embedded")
    config.evaluate.update(beams=beams)
    config.data.max_length = 6
    translate, heads = translator(module, config).translate, module.layer.heads
    batch, gate = {"source": SOURCE, "index": jnp.arange(len(LENGTHS))}, jnp.ones((1, heads))
    whole, different = translate((variables,), batch), 0
    for kind, part in (("encoder", "encoder_0"), ("decoder", "decoder_0"), ("cross", "decoder_0")):
        found = [translate((variables,), batch, {kind: Edit(gate.at[0, head].set(0))}) for head in range(heads)]
        for head, words in enumerate(found):
            blind = jax.tree.map(lambda a: a, variables["params"])
            reads = blind[part]["cross_attention" if kind == "cross" else "self_attention"]
            size = len(reads["out"]) // heads
            reads["out"] = reads["out"].at[head * size : (head + 1) * size].set(0)
            np.testing.assert_array_equal(words, translate(({**variables, "params": blind},), batch))
            different += not np.array_equal(words, whole)
        np.testing.assert_array_equal(whole, translate((variables,), batch, {kind: Edit(gate)}))
    assert different
    assert translate._cache_size() == 1 + 3  # of no gates, and of each kind: not of each head


def test_a_vmap_over_gates_translates_without_each_head_in_one_program():
    module, variables = trained("luong_general")
    translate = translator(module, get_config("luong_general,embedded")).translate
    batch, gates = {"source": SOURCE, "index": jnp.arange(len(LENGTHS))}, jnp.array([0.0, 0.5, 1.0])[:, None, None]
    together = jax.vmap(lambda gate: translate((variables,), batch, {"cross": Edit(gate)}))(gates)
    for words, gate in zip(together, gates, strict=True):
        np.testing.assert_array_equal(words, translate((variables,), batch, {"cross": Edit(gate)}))


@pytest.mark.parametrize("beams", [1, 5])
def test_a_batch_has_so_many_tokens_with_those_of_its_beams_and_every_sentence_is_in_one(beams):
    model, config = build("transformer_small"), get_config("transformer_small,embedded")
    opened = Trained(translator(model, config), (), None, DataConfig(**config.data))
    sentences = Sentences.join([4] * (1 + index % 16) for index in range(3000))
    seen = []
    for indices, batch in batches_of(opened, sentences, sentences, beams=beams):
        assert beams * batch["source"].size <= EVALUATION_TOKENS
        seen += indices.tolist()
    assert sorted(seen) == list(range(3000))


def test_splits_share_the_shapes_of_full_batches_and_examples_those_of_small_ones():
    model, config = build("transformer_small"), get_config("transformer_small,embedded")
    opened = Trained(translator(model, config), (), None, DataConfig(**config.data))

    def shapes(count):
        sentences = Sentences.join([4] * (1 + index % 16) for index in range(count))
        return {batch["source"].shape for _, batch in batches_of(opened, sentences, sentences)}

    assert shapes(200) == shapes(3000) == {(EVALUATION_TOKENS // length, length) for length in (8, 16)}
    assert shapes(1) == {(FEW, 8)}
    assert {rows for count in range(1, FEW + 1) for rows, _ in shapes(count)} == {FEW}
