"""What `attention_jax.load` gives is what the run measured; heads removed by `vmap` are those removed one by one."""

import re
import shutil

import jax
import numpy as np
import pytest
from support import ROOT
from sweeper import train

import attention_jax
from attention_jax.errors import UserError
from attention_jax.modules.attention import Edit
from configs.positional_encoding import get_config

HEADS = 2


@pytest.fixture(scope="module")
def opened(runs):
    return attention_jax.load(runs[0] / "runs" / "mine")


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    config = get_config()
    config.model.update(layers=2, width=8, heads=2, kv_heads=2, feed_forward=8)
    config.data.update(length=8, shortest=2, factors=(1.0,), batch=4, examples=4)
    config.train.update(steps=4, steps_per_call=2, log_every=2, evaluate_every=4, checkpoint_every=4)
    config.optimizer.warmup_steps = 2
    path = tmp_path_factory.mktemp("language_model") / "run"
    train(config.lock(), path)
    return attention_jax.load(path)


def removed_from(kind, layers, heads, place):
    gate = np.ones((layers, heads), np.float32)
    gate[place] = 0
    return {kind: Edit(gate=gate)}


def test_an_opened_run_measures_what_the_run_measured(runs, opened):
    for seed in (0, 1):
        run = attention_jax.load(opened.folder, seed=seed)
        known = run.result["members"][seed]["validation"]
        nats, tokens = run.scores("validation")
        assert nats.sum() / tokens.sum() == pytest.approx(known["loss"], rel=1e-5)
        assert run.measure("validation")["bleu"] == pytest.approx(known["bleu"])
    assert opened.result["seeds"] == [0, 1]
    assert {line["seed"] for line in opened.metrics()} == {0, 1}


def test_it_translates_as_the_run_did(opened):
    references = opened.session.corpus.splits["validation"].references
    written = (opened.folder / "predictions.validation.txt").read_text(encoding="utf-8").splitlines()
    assert opened.translate([reference.source for reference in references]) == written
    assert opened.translate(["", references[0].source, " "]) == ["", written[0], ""]
    assert opened.translate(["", " "]) == ["", ""]


def test_the_last_variables_are_those_of_the_last_checkpoint(opened):
    last = attention_jax.load(opened.folder, which="last")
    assert jax.tree.structure(last.variables) == jax.tree.structure(opened.variables)
    logged = [line["validation.loss"] for line in last.metrics() if line["seed"] == 0 and "validation.loss" in line]
    nats, tokens = last.scores("validation")
    assert nats.sum() / tokens.sum() == pytest.approx(logged[-1], rel=1e-4)


def test_attention_comes_with_its_words(opened):
    texts = ["the cat is black .", "go ."]
    for sentence in opened.attention(texts):
        s, t = len(sentence.source), len(sentence.target)
        assert sentence.heads.keys() == {"encoder", "decoder", "cross"}
        assert sentence.heads["cross"].weights.shape == (1, HEADS, t, s)
        assert sentence.heads["cross"].outputs.shape[:3] == (1, HEADS, t)
        assert sentence.heads["encoder"].outputs.shape[:3] == (1, HEADS, s)
        for heads in sentence.heads.values():
            np.testing.assert_allclose(heads.weights.sum(-1), 1, rtol=1e-5)
    (cut,) = opened.attention(texts[:1], edits=removed_from("cross", 1, HEADS, (0, 1)))
    assert not cut.heads["cross"].outputs[0, 1].any()
    assert cut.heads["cross"].outputs[0, 0].any()


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_heads_removed_together_are_heads_removed_one_by_one(opened, kind):
    pairs = [("the cat is black .", "le chat est noir ."), ("go .", "va !")]
    found = opened.without_each_head(kind, pairs)
    whole = opened.scores(pairs)
    assert found.whole == pytest.approx(whole.nats.sum() / whole.tokens.sum(), rel=1e-5)
    for head in range(HEADS):
        alone = opened.scores(pairs, edits=removed_from(kind, 1, HEADS, (0, head)))
        assert found.losses[0, head] == pytest.approx(alone.nats.sum() / alone.tokens.sum(), rel=1e-5)
    np.testing.assert_allclose(found.change, found.losses - found.whole, atol=1e-6)
    assert (found.low <= found.high).all()


def test_a_language_models_heads_are_removed_alike(language_model):
    tokens = language_model.example(8)
    heads = language_model.attention(tokens)
    assert heads.weights.shape[:3] == (1, 2, 2)
    np.testing.assert_allclose(heads.weights.sum(-1), 1, rtol=1e-5)
    found = language_model.without_each_head(tokens)
    assert found.whole == pytest.approx(language_model.scores(tokens).mean(), rel=1e-5)
    alone = language_model.scores(tokens, edits=removed_from("decoder", 2, 2, (1, 0)))
    assert found.losses[1, 0] == pytest.approx(alone.mean(), rel=1e-5)
    assert np.isnan([found.low, found.high]).all()  # one text has no interval
    several = language_model.without_each_head(np.concatenate([tokens, tokens[:, ::-1]]))
    assert (several.low <= several.change).all()
    assert (several.change <= several.high).all()


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([5, 6, 7], r"of shape \(3,\) and dtype int.*\[texts, t\] are needed"),
        ([[5]], "with a text or more of 2 or more"),
        (np.zeros((0, 5), int), "with a text or more"),
        ("hello", "whole numbers"),
        ([[5.0, 6.0]], "dtype float"),
        ([[5, -3]], "are -3 to 5, and the model has 0 to "),
        ([[5, 10**6]], "are 5 to 1000000"),
    ],
)
def test_what_are_no_tokens_of_a_language_model_is_refused(language_model, tokens, message):
    for asked in (language_model.scores, language_model.without_each_head):
        with pytest.raises(UserError, match=message):
            asked(tokens)


def test_heads_are_gated_while_words_are_chosen(opened, language_model):
    texts = ["the cat is not black .", "go ."]
    ones, nothing = np.ones((1, HEADS), np.float32), np.zeros((1, HEADS), np.float32)
    assert opened.translate(texts, {"cross": Edit(gate=ones)}) == opened.translate(texts)
    closed = {"cross": Edit(gate=nothing)}
    measured = opened.measure("validation", closed)
    nats, tokens = opened.scores("validation", closed)
    assert measured["loss"] == pytest.approx(nats.sum() / tokens.sum(), rel=1e-5)
    assert measured["loss"] != pytest.approx(opened.measure("validation")["loss"], rel=1e-3)
    with pytest.raises(ValueError, match="word by word a head can have a gate alone"):
        opened.translate(texts, {"cross": Edit(replaced=ones > 0, outputs=np.zeros((1, 1, HEADS, 4, 3)))})
    with pytest.raises(UserError, match="kind='self': choose one of cross, decoder, encoder"):
        opened.translate(texts, {"self": Edit(gate=ones)})
    with pytest.raises(UserError, match=r"edits\['cross'\].gate: .* \(2, 2\); it needs .* \(1, 2\)"):
        opened.scores(texts, {"cross": Edit(gate=np.ones((2, 2)))})
    for edit, message in (
        (Edit(outputs=np.zeros((1, 1, HEADS, 4, 3))), r"edits\['cross'\].replaced: is missing"),
        (Edit(replaced=ones > 0), r"edits\['cross'\].replaced: chooses heads, and there are no weights"),
        (Edit(replaced=ones > 0, weights=np.ones((3, 3))), r"edits\['cross'\].weights: .* \(3, 3\); it needs"),
    ):
        with pytest.raises(UserError, match=message):
            opened.translate(texts, {"cross": edit})
    with pytest.raises(UserError, match="'go .': is one text, and a list of texts is needed"):
        opened.translate("go .")
    with pytest.raises(UserError, match=r"edits\['decoder'\].gate"):
        language_model.scores(language_model.example(8), {"decoder": Edit(gate=ones)})


def test_a_sweeps_cell_whose_data_is_a_link_is_a_run_and_a_sweep_is_not(opened, tmp_path):
    cell = tmp_path / "sweep" / "cells" / "1a2b3c"
    shutil.copytree(opened.folder, cell, ignore=shutil.ignore_patterns("data"))
    shutil.copytree(opened.folder / "data", tmp_path / "sweep" / "data" / "4d5e6f")
    (cell / "data").symlink_to("../../data/4d5e6f")
    (tmp_path / "sweep" / "plan.json").write_text("{}")
    pairs = [("go .", "va !")]
    np.testing.assert_array_equal(attention_jax.load(cell).scores(pairs).nats, opened.scores(pairs).nats)
    with pytest.raises(UserError, match="a sweep; open one of its cells"):
        attention_jax.load(tmp_path / "sweep")


def test_what_cannot_be_opened_is_refused_in_a_line(opened, tmp_path):
    for problem, message in (({"which": "worst"}, "choose one of best, last"), ({"seed": 7}, "has the seeds 0, 1")):
        with pytest.raises(UserError, match=message):
            attention_jax.load(opened.folder, **problem)
    with pytest.raises(UserError, match="no run here"):
        attention_jax.load(tmp_path)
    with pytest.raises(UserError, match="choose one of train, validation, test"):
        opened.scores("dev")
    with pytest.raises(UserError, match="choose one of cross, decoder, encoder"):
        opened.without_each_head("self")


def test_the_page_runs_as_it_is_written(runs, monkeypatch):
    monkeypatch.chdir(runs[0])
    text = (ROOT / "docs" / "opening_runs.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    names = {}
    for block in blocks:
        exec(compile(block, "docs/opening_runs.md", "exec"), names)
    assert len(blocks) == 6
    assert all(figure.path.exists() for figure in names["figures"])
