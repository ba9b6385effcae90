"""A language model as its users launch it: trained, resumed, measured on other texts, made to write, refused."""

import json
import re

import numpy as np
import pytest
from browser import needs_browser, seen_on
from texts import DOCUMENTS, write_jsonl

import attention_jax
from attention_jax.errors import UserError

TINY = {
    "model.layers": 1, "model.width": 16, "model.heads": 2, "model.kv_heads": 2, "model.feed_forward": 16,
    "data.length": 16, "data.batch": 4, "data.held_out": 0.1, "data.held_out_test": 0.1, "seeds": (0, 1),
    "evaluate.batch": 8, "evaluate.tokens": 64, "optimizer.warmup_steps": 2, "train.steps": 12,
    "train.steps_per_call": 3, "train.log_every": 3, "train.evaluate_every": 6, "train.checkpoint_every": 6,
    "generate.tokens": 20, "statistics.rows": 3, "statistics.length": 8, "statistics.top": 2,
}  # fmt: skip
CONFIG = "configs/language_model.py:cpu,characters"
FIGURES = ("loss", "perplexity", "perplexity_per_word", "bits_per_byte")


def start(launcher, workdir, *flags, config=CONFIG, **overrides):
    values = {name.replace(".", "__"): value for name, value in TINY.items()}
    return launcher.run(workdir, *flags, config=config, **values | overrides)


def of_run(launcher, workdir, *flags, stdin="", **overrides):
    changed = [f"--config.{name.replace('__', '.')}={value}" for name, value in overrides.items()]
    return launcher.run(workdir, *flags, *changed, config="", stdin=stdin)


@pytest.fixture(scope="module")
def trained(finished, tmp_path_factory):
    """A finished run on a small text, its launcher, and the text's file."""
    folder = tmp_path_factory.mktemp("language_model")
    launcher, text = finished[0], folder / "text.txt"
    text.write_text("".join(DOCUMENTS), encoding="utf-8")
    process = start(launcher, folder / "run", data__path=text)
    assert process.returncode == 0, process.err
    return launcher, folder / "run", text


def test_a_run_is_validated_while_it_trains_and_ends_with_figures_of_all_that_is_held_out(trained):
    _, run, _ = trained
    result = json.loads((run / "result.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validated = [line for line in lines if "validation.loss" in line]
    assert [(line["step"], line["seed"]) for line in validated] == [(6, 0), (6, 1), (12, 0), (12, 1)]
    assert all(f"validation.{name}" in line for name in FIGURES for line in validated)
    assert all({*FIGURES} <= {*result[split]} for split in ("validation", "test"))
    assert len(result["members"]) == 2
    assert result["backend"] == "reference"
    assert result["data"]["splits"]["test"]["tokens"] > 0
    page = (run / "report.html").read_text()
    for shown in ("perplexity a word", "bits a byte", "95% intervals", "Written without a prompt, seed 0"):
        assert shown in page


def test_what_its_heads_do_with_held_out_text_is_kept_and_drawn(trained):
    _, run, _ = trained
    with np.load(run / "statistics.npz") as kept:
        found = dict(kept)
    assert found["entropy"].shape == found["distance"].shape == found["first"].shape == (3, 1, 2, 8)
    assert found["top_keys"].shape == found["top_weights"].shape == (3, 1, 2, 8, 2)
    assert np.all(found["entropy"] <= np.log(np.arange(8) + 1) + 1e-5)  # a query sees itself and what is before it
    np.testing.assert_allclose(found["first"][..., 0], 1, rtol=1e-5)
    assert found["is_token"].all()
    assert (run / "figures" / "heads.png").exists()
    assert "Every head on 24 tokens of held-out text, seed 0" in (run / "report.html").read_text()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_what_an_unbroken_one_says(trained, tmp_path):
    launcher, _, text = trained
    asked = {"data__path": text, "seeds": (0,), "optimizer__decay_steps": 12}
    first = start(launcher, tmp_path / "run", train__steps=6, **asked)
    assert first.returncode == 0, first.err
    whole, again = (start(launcher, tmp_path / name, **asked) for name in ("whole", "run"))
    assert "resuming at step 6" in again.err
    found, unbroken = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("run", "whole"))
    assert whole.returncode == again.returncode == 0
    assert found["validation"] == unbroken["validation"]


def test_it_is_measured_again_and_on_any_text(trained):
    launcher, run, text = trained
    result = json.loads((run / "result.json").read_text())
    again = of_run(launcher, run, "--mode=evaluate")
    assert float(re.search(r"^validation.loss\t(.*)$", again.out, re.MULTILINE)[1]) == pytest.approx(
        result["validation"]["loss"]
    )
    other = of_run(launcher, run, "--mode=evaluate", f"--input={text}")
    told = dict(re.findall(r"^([\w.]+)\t(.*)$", other.out, re.MULTILINE))
    assert float(told["tokens"]) == float(told["bytes"]) - DOCUMENTS_MORE
    assert {*FIGURES} <= {*told}
    missing = of_run(launcher, run, "--mode=evaluate", "--input=nowhere.txt")
    assert missing.returncode == 1
    assert missing.err.startswith("error: nowhere.txt: no such file")
    pair = of_run(launcher, run, "--mode=evaluate", f"--input={text}", f"--reference={text}")
    assert "--reference: a language model is measured on one text" in pair.err


DOCUMENTS_MORE = sum(len(text.encode()) - len(text) for text in DOCUMENTS)


def test_a_prompt_from_a_pipe_is_gone_on_with_and_so_is_one_from_a_file(trained, tmp_path):
    launcher, run, _ = trained
    piped = of_run(launcher, run, "--mode=generate", stdin="Document 7:\n")
    assert piped.returncode == 0, piped.err
    assert piped.out.startswith("Document 7:\n")
    assert len("Document 7:\n") < len(piped.out) <= len("Document 7:\n") + 21
    assert re.search(r"20 tokens in [\d.]+ s, compilation included", piped.err)
    (tmp_path / "prompt.txt").write_text("Document 7:\n")
    filed = of_run(launcher, run, "--mode=generate", f"--input={tmp_path / 'prompt.txt'}")
    assert filed.out == piped.out


def test_several_texts_and_prompts_are_written_one_after_another(trained, tmp_path):
    launcher, run, _ = trained
    (tmp_path / "prompts.txt").write_text("the\nend\n")
    asked = {"generate__prompts": "lines", "generate__samples": 2, "generate__temperature": 0.0}
    found = of_run(
        launcher,
        run,
        "--mode=generate",
        f"--input={tmp_path / 'prompts.txt'}",
        f"--output={tmp_path / 'out.txt'}",
        **asked,
    )
    assert found.returncode == 0, found.err
    texts = (tmp_path / "out.txt").read_text().split("-" * 40 + "\n")
    assert [text[:3] for text in texts] == ["the", "the", "end", "end"]
    assert texts[0] == texts[1]
    nothing = of_run(launcher, run, "--mode=generate")
    assert nothing.returncode == 0
    assert 1 < len(nothing.out) <= 21


def test_documents_are_packed_and_pieces_learnt_from_json_lines(trained, tmp_path):
    launcher, *_ = trained
    path = write_jsonl(tmp_path / "all.jsonl", DOCUMENTS)
    config = "configs/language_model.py:cpu,jsonl"
    process = start(launcher, tmp_path / "run", config=config, data__path=path, data__vocabulary=300, seeds=(0,))
    assert process.returncode == 0, process.err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["data"]["has_ends"]
    found = of_run(launcher, tmp_path / "run", "--mode=generate", generate__tokens=5)
    assert found.returncode == 0, found.err


@pytest.mark.parametrize(
    ("flags", "overrides", "message"),
    [
        (
            (),
            {"generate__temperature": 0.0, "generate__top_k": 3},
            "config.generate.top_k=3: is for drawing words",
        ),
        ((), {"generate__top_p": 0.0}, "config.generate.top_p=0.0: needs more than 0 and at most 1"),
        ((), {"generate__prompts": "words"}, "config.generate.prompts='words': choose one of whole, lines"),
        ((), {"generate__tokens": 0}, "config.generate.tokens=0: needs 1 or more"),
        (("--input=PROMPT",), {}, "the prompt has characters that are not in the training text: 'Ω'"),
        (("--input=nowhere",), {}, "nowhere: no such file"),
        (("--output=nowhere/out.txt",), {}, "--output=nowhere/out.txt: there is no folder nowhere"),
        ((), {"model__layers": 2}, "holds a run of another config"),
    ],
)
def test_what_cannot_be_written_is_refused_in_a_line(trained, tmp_path, flags, overrides, message):
    launcher, run, _ = trained
    (tmp_path / "prompt").write_text("Ω")
    asked = [flag.replace("PROMPT", str(tmp_path / "prompt")) for flag in flags]
    process = of_run(launcher, run, "--mode=generate", *asked, **overrides)
    assert process.returncode == 1
    assert message in process.err
    assert len(process.err.strip().splitlines()) == 1


def test_a_translator_does_not_write_texts(finished):
    launcher, run, _ = finished
    process = launcher.run(run, "--mode=generate", config="")
    assert process.err == "error: config.experiment='nmt': has nothing to generate.\n"


def test_a_run_can_be_opened_and_writes_what_the_command_does(trained):
    launcher, run, _ = trained
    opened = attention_jax.load(run)
    told = of_run(launcher, run, "--mode=generate", stdin="the ", generate__temperature=0.0)
    assert opened.generate("the ", temperature=0.0).rstrip("\n") == told.out.rstrip("\n")
    with pytest.raises(UserError, match="the text has characters that are not in the training text: 'a'"):
        opened.tokens("the cat")
    tokens = opened.tokens("the the")
    assert tokens.shape == (1, 7)
    assert opened.scores(tokens).shape == (1, 6)
    heads, told = opened.attention(tokens), opened.statistics(tokens, top=7)
    assert heads.weights.shape == (1, 1, 2, 7, 7)
    np.testing.assert_allclose(told.top_weights, -np.sort(-heads.weights), rtol=1e-5, atol=1e-6)


HEADS = {"config": "configs/heads.py:smoke", "sentences": 3}


@pytest.fixture(scope="module")
def measured(trained, tmp_path_factory):
    """The folder of a measurement of the run's heads."""
    (launcher, run, _), folder = trained, tmp_path_factory.mktemp("heads")
    process = launcher.run(folder, **HEADS, run=run, parts="('removing','roles','page')")
    assert process.returncode == 0, process.err
    return folder


@pytest.mark.slow
def test_its_heads_are_removed_and_watched_but_read_no_couples(trained, measured, tmp_path):
    launcher, run, _ = trained
    refused = launcher.run(tmp_path / "refused", **HEADS, run=run)
    assert refused.returncode == 1
    assert "patching needs the embedded corpus" in refused.err
    result = json.loads((measured / "result.json").read_text())
    assert result["heads"]["decoder"]["1"].keys() == {"1", "2"}
    assert result["heads"]["decoder"]["1"]["2"].keys() == {"change", "estimate", "positional"}
    assert result["pruning"]["exact"]["2"] == pytest.approx(result["pruning"]["random"]["2"])
    assert "bleu" not in result


CLICKS = """
  const heads = [...document.querySelectorAll("main button")];
  const shown = id => [...document.querySelectorAll(`#${id} span`)].map(word => [word.textContent, word.title]);
  const seen = [shown("whole"), shown("without")];
  for (const head of heads) { head.click(); seen.push(shown("without")); }
  return seen;
"""
BLANKS = {" ": "␣", "\n": "⏎", "\t": "⇥"}


@pytest.mark.slow
@needs_browser
def test_a_browser_shows_every_probability_of_its_text_with_every_head_and_without_each(measured, tmp_path):
    page = (measured / "heads.html").read_text(encoding="utf-8")
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    found = json.loads(text)
    (without,) = found["kinds"][0]["without"]
    whole, nothing, *each = seen_on(page, tmp_path, CLICKS)
    assert nothing == []
    for shown, written in zip([whole, *each], [found["whole"], *without], strict=True):
        pairs = zip(written["words"], written["probabilities"], strict=True)
        assert shown == [[BLANKS.get(word, word), f"probability {share:g}"] for word, share in pairs]
    assert whole != each[0] != each[1]
