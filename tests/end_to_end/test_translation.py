"""A run of translation from start to end, killed, stopped, resumed, extended, and read."""

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


def parameters(folder):
    """Every array of the newest checkpoint, by name."""
    import orbax.checkpoint as ocp

    step = max(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
    tree = ocp.StandardCheckpointer().restore(folder.absolute() / "checkpoints" / str(step) / "default")
    return step, tree


def assert_same_run(one, other):
    (step, tree), (other_step, other_tree) = parameters(one), parameters(other)
    assert step == other_step
    jax.tree.map(np.testing.assert_array_equal, tree, other_tree)
    for first, second in zip(*(metrics(folder) for folder in (one, other)), strict=True):
        assert first == second


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


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
    assert result["cost"]["parameters"] > 1000
    assert result["cost"]["flops"] > 1e6
    assert {"python", "jax", "flax"} <= set(result["versions"])
    for split in ("validation", "test"):
        assert len((folder / f"predictions.{split}.txt").read_text().splitlines()) == 5
    assert list((folder / "tensorboard").rglob("events*"))
    assert read_config(folder).model.kwargs.hidden == 8
    for name in ("attention.png", "loss.png", "bleu.png", "bleu_by_length.png"):
        assert str(folder / "figures" / name) in process.out
    assert "report.html" in process.out
    assert "tokens/s" in process.err


def test_lines_are_translated_through_a_pipe_in_order_and_empty_ones_stay(finished, tmp_path):
    launcher, folder, _ = finished
    long = " ".join(["the cat sleeps ."] * 8)
    lines = ["The cat sleeps.", "", long, "The cat sleeps."]
    command = [*launcher.command(folder, "--mode=translate", config="")]
    process = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert process.returncode == 0, process.stderr
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
    assert [lines[place][1] for place in (0, 3, 6)] == alone
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
    from attention_jax.runs.folder import Run
    from attention_jax.runs.training import last_variables
    from attention_jax.training.state import mean
    from experiments.nmt import COMBINE, init, open_corpus

    folder = finished[1]
    config, run = read_config(folder), Run(folder, 0.0)
    corpus, programs = open_corpus(config, folder / "data")
    saved = config, run, functools.partial(init, programs.model), corpus.vocabulary
    ((newest, before),) = last_variables(2, *saved)
    ((averaged,),) = COMBINE["average"](2, *saved)
    expected = jax.tree.map(lambda a, b: (np.asarray(a, np.float64) + b) / 2, newest, before)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), averaged, expected)
    assert max(jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), newest, before))) > 0
    jax.tree.map(np.testing.assert_array_equal, averaged, mean([before, newest]))


def test_the_report_stands_alone(finished):
    page = (finished[1] / "report.html").read_text()
    assert not re.search(r"(src|href)=.?(http|//|/|file)", page)
    assert page.count("data:image/png") == 4
    assert "Translations (validation)" in page


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
    rows = re.findall(r"<tr><td>test</td>(.*)</tr>", page)
    assert [re.findall(r">([^<]*)</td>", row) for row in rows] == [["8", "1", "1", ""]]


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
@pytest.mark.parametrize("at_step", [12, 28])
def test_a_run_killed_at_any_moment_goes_on_to_the_same_result(finished, tmp_path, at_step):
    launcher, unbroken, _ = finished
    killed = launcher.interrupt("SIGKILL", tmp_path / "run", at_step)
    assert killed.returncode == -9
    assert not (tmp_path / "run" / "result.json").exists()
    resumed = launcher.run(tmp_path / "run")
    assert resumed.returncode == 0, resumed.err
    assert "resuming at step" in resumed.err
    assert_same_run(tmp_path / "run", unbroken)


def test_what_a_run_reports_does_not_depend_on_what_is_left_of_its_log(finished, tmp_path):
    launcher, unbroken, _ = finished
    log = (unbroken / "metrics.jsonl").read_text()
    for number, left in enumerate((None, log[:500], log.replace('"step": 24', '"step": 42'))):
        folder = tmp_path / str(number)
        shutil.copytree(unbroken, folder)
        (folder / "result.json").unlink()
        (folder / "metrics.jsonl").unlink() if left is None else (folder / "metrics.jsonl").write_text(left)
        process = launcher.run(folder)
        assert process.returncode == 0, process.err
        assert (folder / "metrics.jsonl").read_text() == log
        result, whole = (json.loads((run / "result.json").read_text()) for run in (folder, unbroken))
        assert {**result, "seconds": whole["seconds"]} == whole  # its own wall time goes on


def test_a_flipped_byte_in_the_newest_checkpoint_gives_the_numbers_of_the_one_before_and_says_so(finished, tmp_path):
    launcher, unbroken, _ = finished
    shutil.copytree(unbroken, tmp_path / "w")
    newest = tmp_path / "w" / "checkpoints" / "40"
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    damaged = bytearray(largest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    largest.write_bytes(damaged)
    flipped = launcher.run(tmp_path / "w", "--mode=evaluate", config="")
    assert flipped.returncode == 0, flipped.err
    said = f"{newest}: cannot be read ({largest.relative_to(newest)}: its digest is not what was saved); using the one"
    assert said in flipped.err
    assert "Traceback" not in flipped.err
    shutil.rmtree(newest)
    assert launcher.run(tmp_path / "w", "--mode=evaluate", config="").out == flipped.out


@pytest.mark.slow
def test_a_run_of_a_version_that_kept_nothing_beside_its_checkpoints_ends_without_its_log(finished, tmp_path):
    launcher, unbroken, _ = finished
    folder = tmp_path / "w"
    shutil.copytree(unbroken, folder)
    for path in (folder / "checkpoints").iterdir():
        (path / "about.json").unlink()
        (path / "_CHECKPOINT_METADATA").write_text("{}")
    (folder / "metrics.jsonl").unlink()
    (folder / "result.json").unlink()
    process = launcher.run(folder)
    assert process.returncode == 0, process.err
    result, whole = (json.loads((run / "result.json").read_text()) for run in (folder, unbroken))
    assert result["train"]["loss"] is None
    assert result["validation"] == whole["validation"]


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_a_run_asked_to_stop_saves_says_how_to_go_on_and_does(finished, tmp_path, how):
    launcher, unbroken, _ = finished
    long = {"train__steps": 4000, "train__checkpoint_every": 4000}
    stopped = launcher.interrupt(how, tmp_path / "run", 4, **long)
    assert stopped.returncode == 130, stopped.err
    assert re.search(r"stopped and saved at step \d+ of 4,000. The same command goes on from there.", stopped.err)
    step = parameters(tmp_path / "run")[0]
    assert step >= 4
    resumed = launcher.interrupt("SIGINT", tmp_path / "run", step // 4 * 4 + 8, **long)
    assert f"resuming at step {step}" in resumed.err
    assert metrics(tmp_path / "run")[:3] == metrics(unbroken)[:3]


@pytest.mark.slow
def test_a_finished_run_goes_on_when_its_steps_are_raised(finished, tmp_path):
    launcher, folder, _ = finished
    shutil.copytree(folder, tmp_path / "run")
    longer = launcher.run(tmp_path / "run", train__steps=48)
    assert longer.returncode == 0, longer.err
    assert "resuming at step 40" in longer.err
    assert parameters(tmp_path / "run")[0] == 48


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
def test_a_run_can_start_from_anothers_parameters_and_vocabulary(finished, tmp_path):
    launcher, folder, _ = finished
    tuned = launcher.run(tmp_path / "run", train__init_from=folder, train__steps=4, optimizer__learning_rate=0.0)
    assert tuned.returncode == 0, tuned.err
    values = json.loads((tmp_path / "run" / "result.json").read_text())
    assert values["validation"]["loss"] == json.loads((folder / "result.json").read_text())["validation"]["loss"]


@pytest.mark.slow
def test_starting_from_another_run_survives_a_kill_before_the_first_checkpoint(finished, tmp_path):
    launcher, folder, _ = finished
    flags = {"train__init_from": folder, "train__checkpoint_every": 4000, "train__log_every": 1, "train__steps": 4000}
    unchanged = {**flags, "optimizer__learning_rate": 0.0, "optimizer__dropout": 0.0}
    first = launcher.interrupt("SIGKILL", tmp_path / "run", 2, **unchanged)
    assert first.returncode == -9
    before = metrics(tmp_path / "run")[:2]
    launcher.interrupt("SIGKILL", tmp_path / "run", 2, **unchanged)
    assert metrics(tmp_path / "run")[:2] == before


def test_starting_from_another_kind_of_model_is_refused(finished, tmp_path):
    launcher, folder, _ = finished
    process = launcher.run(tmp_path / "run", train__init_from=folder, model__kwargs__hidden=16)
    assert process.returncode == 1
    assert "error: config.train.init_from" in process.err
    assert "Traceback" not in process.err
    assert not (tmp_path / "run").exists()


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


def test_a_nan_is_found_where_it_is_born(launcher, tmp_path):
    process = launcher.run(tmp_path / "run", "--debug_nans", optimizer__learning_rate=1e30)
    assert process.returncode == 1
    assert "FloatingPointError" in process.err


@pytest.mark.slow
def test_a_profile_is_written_when_asked_for(tmp_path, launcher):
    process = launcher.run(tmp_path / "run", "--profile", train__steps=12)
    assert process.returncode == 0, process.err
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))


@pytest.mark.slow
def test_a_sentence_is_translated_wherever_the_model_has_room_and_refused_by_its_line_where_not(launcher, tmp_path):
    room = {"config": "configs/nmt.py:luong_location,tsv", "model__kwargs__max_length": 14, "train__steps": 2}
    assert launcher.run(tmp_path / "w", evaluate__examples=1, **room).returncode == 0
    (tmp_path / "in.txt").write_text("a cat .\n" + "cat " * 13 + "\n" + "cat " * 14 + "\n")
    flags = ("--mode=translate", f"--input={tmp_path / 'in.txt'}")
    process = launcher.run(tmp_path / "w", *flags, config="")
    assert process.returncode == 1
    assert process.err.splitlines()[-1] == "error: line 3: 15 tokens with <eos>, and this model has room for 14."
    (tmp_path / "in.txt").write_text("a cat .\n" + "cat " * 13 + "\n")
    process = launcher.run(tmp_path / "w", *flags, config="")
    assert process.returncode == 0, process.err
    assert len(process.out.splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bahdanau", "luong_concat"])
def test_attention_finds_which_word_translates_which(launcher, tmp_path, model):
    command = launcher.command(tmp_path / "w", config=f"configs/nmt.py:{model},embedded", seeds="(0,1,2)")
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    assert json.loads((tmp_path / "w" / "result.json").read_text())["test"]["alignment_error_rate"] <= 0.15
