"""A run of translation from start to end, and what reads it."""

import functools
import json
import re
import shutil
import subprocess

import jax
import numpy as np
import pytest
from support import ROOT

from attention_jax.data.tokenizers import join_words
from attention_jax.runs.folder import read_config


def test_a_run_leaves_everything_that_a_reader_needs(finished):
    _, folder, process = finished
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "finished"
    assert result["seeds"] == [0]
    assert 0 < result["train"]["loss"] < 6
    assert 0 < result["validation"]["loss"] < 6
    assert result["validation"]["bleu"] >= 0
    assert "tok:13a" in result["validation"]["bleu_signature"]
    assert result["seconds"] > 0
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["validation.loss"] for line in lines if "validation.loss" in line}
    assert losses[result["best_steps"][0]] == min(losses.values()) == pytest.approx(result["validation"]["loss"])
    assert result["cost"]["parameters"] > 1000
    assert result["cost"]["flops"] > 1e6
    assert {"python", "jax", "flax"} <= set(result["versions"])
    for split in ("validation", "test"):
        assert len((folder / f"predictions.{split}.txt").read_text().splitlines()) == 5
    assert list((folder / "tensorboard").rglob("events*"))
    assert read_config(folder).model.kwargs.hidden == 8
    for name in ("attention.png", "learning.png", "by_length.png"):
        assert str(folder / "figures" / name) in process.out
        assert (folder / "figures" / name).with_suffix(".pdf").is_file()
    assert "report.html" in process.out
    assert "tokens/s" in process.err


def test_lines_are_translated_through_a_pipe_in_order_and_empty_ones_stay(finished, tmp_path):
    launcher, folder, _ = finished
    long = " ".join(["the cat sleeps ."] * 8)
    lines = ["The cat sleeps.", "", long, "The cat sleeps."]
    command = [*launcher.command(folder, "--mode=translate", config="")]
    process = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert process.returncode == 0, process.stderr
    assert re.search(r"\d+ of 40 source tokens are not in the vocabulary: each is read as <unk>", process.stderr)
    found = process.stdout.split("\n")
    assert len(found) == 5
    assert found[0] == found[3] != ""
    assert found[1] == found[4] == ""
    (tmp_path / "in.txt").write_text("\n".join(lines), encoding="utf-8")
    files = (f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'out.txt'}", f"--attention={tmp_path / 'a.html'}")
    process = launcher.run(folder, "--mode=translate", *files, config="")
    assert process.returncode == 0, process.err
    assert process.out == ""
    assert (tmp_path / "out.txt").read_text() == "\n".join(found)
    assert "data:image/png;base64" in (tmp_path / "a.html").read_text()
    archive = f"--attention={tmp_path / 'a.npz'}"
    assert launcher.run(folder, "--mode=translate", files[0], archive, config="").returncode == 0
    weights = np.load(tmp_path / "a.npz")
    assert weights["0.cross"].shape == (1, 1, len(weights["0.target"]), len(weights["0.source"]))
    assert [len(weights["0.source"]), weights["0.source"][-1]] == [5, "<eos>"]
    np.testing.assert_allclose(weights["0.cross"].sum(-1), 1, rtol=1e-5)
    for line, text in enumerate(found[:-1]):
        if f"{line}.target" in weights:  # every word that was written, and the end if it was
            *words, last = weights[f"{line}.target"]
            has_end = last == "<eos>"
            assert join_words(words if has_end else [*words, last]) == text
            assert has_end or len(words) + 1 in (12, 48)  # the room of a short and of the long line


def test_a_pair_of_files_is_measured_as_the_split_it_came_from(finished, tmp_path):
    launcher, folder, _ = finished
    pairs = [json.loads(line) for line in (folder / "data" / "test.pairs.jsonl").read_text().splitlines()]
    files = [tmp_path / "test.en", tmp_path / "test.fr"]
    for side, file in enumerate(files):
        file.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    flags = (f"--input={files[0]}", f"--reference={files[1]}")
    process = launcher.run(folder, "--mode=evaluate", *flags, config="")
    assert process.returncode == 0, process.err
    found = dict(line.split("\t") for line in process.out.splitlines())
    expected = json.loads((folder / "result.json").read_text())["test"]
    for name in ("loss", "bleu", "chrf"):
        assert float(found[name]) == pytest.approx(expected[name], rel=1e-5)


def test_translations_can_be_drawn(finished, tmp_path):
    launcher, folder, _ = finished
    (tmp_path / "in.txt").write_text("the cat sleeps .\n" * 4)
    found = []
    for seed in (0, 0, 1):
        flags = ("--mode=translate", f"--input={tmp_path / 'in.txt'}")
        process = launcher.run(folder, *flags, evaluate__temperature=1.5, evaluate__seed=seed)
        assert process.returncode == 0, process.err
        found.append(process.out.splitlines())
    assert found[0] == found[1] != found[2]
    assert len(set(found[0])) > 1


def test_the_n_best_translations_of_a_line_are_written_with_their_scores_the_first_as_without_them(finished, tmp_path):
    launcher, folder, _ = finished
    (tmp_path / "in.txt").write_text("the cat sleeps .\n\na boy reads .\n")
    flags = ("--mode=translate", f"--input={tmp_path / 'in.txt'}", "--config.evaluate.beams=3")
    alone = launcher.run(folder, *flags, config="").out.splitlines()
    process = launcher.run(folder, *flags, "--config.evaluate.n_best=3", config="")
    assert process.returncode == 0, process.err
    lines = [line.split("\t") for line in process.out.splitlines()]
    assert [lines[index][1] for index in (0, 3, 6)] == alone
    assert lines[3:6] == [["", ""]] * 3
    for found in (lines[:3], lines[6:]):
        scores = [float(score) for score, _ in found]
        assert 0 > scores[0] >= scores[1] >= scores[2] > -50


@pytest.mark.parametrize("combine", ["average", "ensemble"])
def test_another_way_of_decoding_is_measured_without_changing_the_run(finished, combine):
    launcher, folder, _ = finished
    before = (folder / "config.json").read_text()
    asked = [f"--config.evaluate.{name}" for name in ("beams=3", f"combine={combine}", "last=2")]
    process = launcher.run(folder, "--mode=evaluate", *asked, config="")  # what is not named is the run's
    assert process.returncode == 0, process.err
    found = dict(line.split("\t") for line in process.out.splitlines())
    assert float(found["test.loss"]) != json.loads((folder / "result.json").read_text())["test"]["loss"]
    assert (folder / "config.json").read_text() == before


def test_an_average_of_checkpoints_is_the_mean_of_what_they_hold(finished):
    from attention_jax.tasks.translation.combining import COMBINE
    from attention_jax.tasks.translation.session import Session
    from attention_jax.training.saved import last_variables
    from attention_jax.training.state import mean

    folder = finished[1]
    config = read_config(folder)
    session = Session(config, folder / "data")
    saved = config, folder, session.init, session.corpus.vocabulary
    ((newest, before),) = last_variables(*saved, count=2)
    ((averaged,),) = COMBINE["average"](2, *saved)
    expected = jax.tree.map(lambda a, b: (np.asarray(a, np.float64) + b) / 2, newest, before)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), averaged, expected)
    assert max(jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), newest, before))) > 0
    jax.tree.map(np.testing.assert_array_equal, averaged, mean([before, newest]))


def test_the_report_stands_alone(finished):
    page = (finished[1] / "report.html").read_text()
    assert not re.search(r"(src|href)=.?(http|//|/|file)", page)
    assert page.count("data:image/png") == 3
    assert "Translations (validation)" in page


@pytest.mark.slow
def test_result_and_report_tell_by_split_what_was_kept_out_and_why(launcher, tmp_path):
    lines = launcher.pairs.read_text(encoding="utf-8").splitlines(keepends=True)
    launcher.pairs.write_text("".join([*lines[:40], lines[50], "no tab here\n"]), encoding="utf-8")
    (tmp_path / "own.txt").write_text("".join([*lines[50:58], "a\t" + "b " * 20 + "\n", "\n"]), encoding="utf-8")
    how = {"data__on_long": "skip", "data__on_bad_line": "skip", "data__test_path": tmp_path / "own.txt"}
    process = launcher.run(tmp_path / "w", train__steps=2, data__buckets="(12,)", evaluate__examples=1, **how)
    assert process.returncode == 0, process.err
    assert "skipped 1 pairs longer than config.data.max_length: 1 test" in process.err
    assert "skipped 2 bad lines, first" in process.err
    data = json.loads((tmp_path / "w" / "result.json").read_text())["data"]
    assert data["too_long_by_split"] == {"train": 0, "validation": 0, "test": 1}
    assert data["bad_lines_by_file"] == {"test": 1, "train": 1}
    assert data["pairs"]["test"] == 8
    assert "fingerprint" in data
    assert "digests" not in data
    page = (tmp_path / "w" / "report.html").read_text()
    assert "test lacks 1 pairs that are too long and 1 bad lines of its file" in page
    rows = re.findall(r"<tr><td>test</td>(.*)</tr>", page.partition("<h2>Data")[2])
    assert [re.findall(r">([^<]*)</td>", row) for row in rows] == [["8", "1", "1", ""]]


@pytest.mark.slow
def test_a_report_of_an_older_import_is_written(finished, tmp_path):
    launcher, folder, _ = finished
    shutil.copytree(folder, tmp_path / "w")
    path = tmp_path / "w" / "data" / "meta.json"
    meta = json.loads(path.read_text())
    for name in ("digests", "too_long_by_split", "bad_lines_by_file", "left_out", "repeated", "in_both"):
        del meta[name]
    path.write_text(json.dumps(meta))
    assert launcher.run(tmp_path / "w", "--mode=report", config="").returncode == 0
    again = launcher.run(tmp_path / "w", train__steps=42)  # tells the import
    assert again.returncode == 0, again.err
    assert "pairs: " in again.err


def test_the_same_command_again_shows_the_result_and_changes_nothing(finished):
    launcher, folder, process = finished
    before = (folder / "result.json").read_bytes()
    again = launcher.run(folder)
    assert again.returncode == 0
    assert again.out == process.out
    assert "finished before; nothing was run" in again.err
    assert "made by other code" not in again.err
    assert (folder / "result.json").read_bytes() == before


def test_evaluating_and_reporting_need_only_the_folder(finished):
    launcher, folder, _ = finished
    evaluated = launcher.run(folder, "--mode=evaluate", config=None)
    assert evaluated.returncode == 0, evaluated.err
    values = dict(line.split("\t") for line in evaluated.out.splitlines())
    result = json.loads((folder / "result.json").read_text())
    assert float(values["validation.bleu"]) == result["validation"]["bleu"]
    assert float(values["test.loss"]) == result["test"]["loss"]
    (folder / "report.html").unlink()
    assert launcher.run(folder, "--mode=report", config=None).returncode == 0
    assert (folder / "report.html").exists()


@pytest.mark.slow
def test_seeds_of_one_run_equal_runs_of_their_own_and_come_with_intervals(finished, tmp_path):
    launcher, folder, _ = finished
    together = launcher.run(tmp_path / "run", seeds="(7,0)", data__on_device=False)
    assert together.returncode == 0, together.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    alone = json.loads((folder / "result.json").read_text())
    assert result["members"][1]["validation"] == alone["validation"]
    assert result["members"][1]["train"] == alone["train"]
    mean = np.mean([member["validation"]["loss"] for member in result["members"]])
    assert result["validation"]["loss"] == pytest.approx(mean)
    low, high = result["ci95"]["validation"]["loss"]
    assert low < mean < high


@pytest.mark.slow
def test_a_run_that_was_never_evaluated_has_nothing_to_measure(launcher, tmp_path):
    launcher.interrupt("SIGINT", tmp_path / "run", 4, train__steps=4000, train__evaluate_every=4000)
    process = launcher.run(tmp_path / "run", "--mode=evaluate", config=None)
    assert process.returncode == 1
    assert "not evaluated yet" in process.err


@pytest.mark.slow
def test_dollars_in_a_corpus_are_words(launcher, tmp_path):
    text = launcher.pairs.read_text(encoding="utf-8").replace("the ", r"$\frac$ ")
    launcher.pairs.write_text(text.replace("le ", "$x_1$ "), encoding="utf-8")
    process = launcher.run(tmp_path / "run", train__steps=4)
    assert process.returncode == 0, process.err


def test_a_nan_is_told_with_its_operation_and_layer(launcher, tmp_path):
    process = launcher.run(tmp_path / "run", "--debug_nans", optimizer__learning_rate=1e30)
    assert process.returncode == 1
    line = process.err.splitlines()[-1]
    assert line.startswith("error: --debug_nans: seed 0, step 2: the loss is not finite; the first NaN is made by ")
    assert re.search(r" in RecurrentTranslator/\w+/\S+ \(attention_jax/\S+\.py:\d+\)", line)
    assert "Traceback" not in process.err


@pytest.mark.slow
def test_a_profile_is_written_when_asked_for(tmp_path, launcher):
    process = launcher.run(tmp_path / "run", "--profile", train__steps=12)
    assert process.returncode == 0, process.err
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))


@pytest.mark.slow
def test_a_sentence_is_translated_wherever_the_model_has_room_and_refused_by_its_line_where_not(launcher, tmp_path):
    room = {
        "config": "configs/nmt.py:luong_location,tsv",
        "model__kwargs__score": "location:longest=14",
        "train__steps": 2,
    }
    assert launcher.run(tmp_path / "w", evaluate__examples=1, **room).returncode == 0
    (tmp_path / "in.txt").write_text("a cat .\n" + "cat " * 13 + "\n" + "cat " * 14 + "\n")
    flags = ("--mode=translate", f"--input={tmp_path / 'in.txt'}")
    process = launcher.run(tmp_path / "w", *flags, config="")
    assert process.returncode == 1
    assert (
        process.err.splitlines()[-1]
        == "error: line 3: 15 tokens with <eos>, and this model has room for 14. Shorten it."
    )
    before = process.out.splitlines()
    assert len(before) == 2
    (tmp_path / "in.txt").write_text("a cat .\n" + "cat " * 13 + "\n")
    process = launcher.run(tmp_path / "w", *flags, config="")
    assert process.returncode == 0, process.err
    assert process.out.splitlines() == before


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bahdanau", "luong_concat"])
def test_attention_finds_which_word_translates_which(launcher, tmp_path, model):
    small = {"model__kwargs__hidden": 64, "model__kwargs__embedding": 64, "optimizer__learning_rate": 6e-3}
    short = {"data__buckets": (12,), "data__max_length": 12, "train__steps": 300}
    process = launcher.train_long(tmp_path / "w", config=f"configs/nmt.py:{model},embedded", **small, **short)
    assert process.returncode == 0, process.err
    result = json.loads((tmp_path / "w" / "result.json").read_text())
    assert result["test"]["alignment_error_rate"] <= 0.15  # the diagonal's: .45
