"""A translator's programs: losses and attention whatever the padding, alignments, what is refused."""

import collections
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translators import build

from attention_jax.data.batching import Batches, split_buckets
from attention_jax.data.config import DataConfig
from attention_jax.data.corpus import Reference, Split
from attention_jax.data.importing import load_or_import
from attention_jax.data.sentences import Sentences
from attention_jax.errors import UserError
from attention_jax.ops.dropout import Dropout
from attention_jax.training.cost import flops
from configs.nmt import get_config
from experiments import _translator, nmt
from experiments._translator import Trained, bleu_tokens, init, loss, translator

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


@pytest.mark.parametrize("name", ["luong_concat", "transformer_small"])
def test_every_layers_and_heads_attention_is_that_of_the_sentence_alone(name):
    model, config = build(name, layers=1, encoder_layers=2, decoder_layers=1), get_config(f"{name},embedded")
    variables, pairs = init(model, jax.random.key(0)), [([4, 5, 6, 7, 2], [7, 8, 2]), ([9, 2], [4, 4, 5, 6, 6, 2])]
    source, target = (Sentences.join(side) for side in zip(*pairs, strict=True))
    trained = Trained(translator(model, config), (variables,), None, DataConfig(**config.data))
    for found, (read, written) in zip(_translator.attention(trained, source, target), pairs, strict=True):
        before = jnp.array([[1, *written[:-1]]])
        arguments = (jnp.array([read]), jnp.array([len(read)]), before)
        alone = model.apply(variables, *arguments, method="attention")
        assert found.keys() == alone.keys()
        for kind, weights in found.items():
            np.testing.assert_allclose(weights, alone[kind][0], rtol=1e-4, atol=1e-6)


def test_an_alignment_is_scored_without_the_end_and_only_where_every_word_has_its_truth():
    def score(truth):
        references = [Reference("a b", ["x y"], truth)]
        return _translator._alignment(
            [np.array([[0.2, 0.0, 0.0], [0.0, 0.1, 0.0], [0, 0, 1]])], Split(*"??", {}, references)
        )

    assert score([[0], [1]])["alignment_error_rate"] == 0
    assert score([[1], [0]])["alignment_error_rate"] == 1
    assert "alignment_error_rate" not in score([[0], [1], [1]])
    assert score(None).keys() == {"monotonicity", "coverage", "entropy"}


def test_one_table_for_all_embeddings_needs_one_vocabulary_even_where_two_have_one_size():
    config = get_config("transformer_small,embedded")
    config.model.kwargs.shared = "all"
    with pytest.raises(UserError, match="shared='all' needs one vocabulary of both languages"):
        _translator.build(config, 50, 50)
    config.data.joint_vocabulary = True
    assert _translator.build(config, 50, 50)


def test_a_prepared_corpus_is_opened_by_the_flags_that_are_printed_and_says_what_it_skipped(tmp_path, capsys):
    lines = "".join(f"word{i} here .\tmot{i} ici .\n" for i in range(60))
    (tmp_path / "pairs.txt").write_text(f"no tab\n{lines}", encoding="utf-8")
    config = get_config("bahdanau,tsv")
    config.data.update(path=str(tmp_path / "pairs.txt"), on_bad_line="skip", validation=5, test=0, min_count=1)
    printed = nmt.prepare(config, tmp_path / "tfds" / "pairs")
    assert "skipped 1 bad lines, first" in capsys.readouterr().err
    assert printed.split(" ")[:2] == ["--config.data.source=tfds:pairs", f"--config.data.path={tmp_path / 'tfds'}"]
    assert printed.endswith("--config.data.test_path= --config.data.test=0")
    there = get_config("bahdanau,tfds")
    there.data.update(source="tfds:pairs", path=str(tmp_path / "tfds"), languages=("en", "fr"), test_path="", test=0)
    there.data.update(tokenizer="words", min_count=1)
    assert load_or_import(Path(tmp_path / "data"), DataConfig(**there.data)).meta["pairs"] == {
        "train": 55,
        "validation": 5,
    }


def test_the_cost_of_a_run_is_that_of_its_steps_one_by_one(tmp_path):
    config = get_config("bahdanau,embedded")
    config.model.kwargs.update(embedding=8, hidden=8)
    corpus, programs = nmt.open_corpus(config, tmp_path / "data")
    buckets = split_buckets(corpus.splits["train"], config.data.batch_tokens)
    batches = Batches(buckets, 1)
    config.train.steps = 2 * batches.steps_per_epoch
    steps = collections.Counter(batches.call(0, step, step + 1).bucket for step in range(config.train.steps))
    spent = sum(count * step_flops(programs.model, buckets[place]) for place, count in steps.items())
    assert nmt._cost(config, corpus, programs)["flops"] == pytest.approx(spent, rel=1e-9)


def step_flops(model, bucket):
    variables = init(model, jax.random.key(0))
    batch = dict.fromkeys(("source", "target"), jnp.zeros((bucket.batch_size, bucket.length), jnp.int32))

    def of_params(params):
        return loss(model, variables | {"params": params}, batch, Dropout(jax.random.key(1), 0.1), 0.1)[0].total

    return flops(jax.grad(of_params), variables["params"])
