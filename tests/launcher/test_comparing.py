"""--mode=compare says what the seeds of two runs say, and refuses what cannot be told."""

import json
import re
import shutil

import numpy as np
import pytest
from scipy import stats

from attention_jax.errors import UserError
from attention_jax.launcher import experiments
from attention_jax.launcher.modes import MODES
from attention_jax.runs.experiment import Request
from attention_jax.sweeps.answer import sentence_scores
from attention_jax.sweeps.folder import stored_config


def compare(*paths, metrics=(), output="-"):
    config = stored_config(paths[0])
    request = Request(config, paths[0], 0.0, False, runs=paths, metrics=metrics, output=str(output))
    MODES["compare"](experiments.load("nmt"), request)


def result_of(path):
    return json.loads((path / "result.json").read_text())


def rows_of(text):
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


@pytest.fixture
def both(runs):
    return runs[0] / "runs" / "mine", runs[0] / "runs" / "other"


@pytest.fixture
def changed(both, tmp_path):
    """The second run with another config or result."""

    def make(config=(), result=()):
        path = tmp_path / "changed"
        path.mkdir(exist_ok=True)
        shutil.copy(both[1] / "scores.npz", path)
        for name, changes in (("config", config), ("result", result)):
            tree = json.loads((both[1] / f"{name}.json").read_text())
            for key, value in dict(changes).items():
                *sections, last = key.split(".")
                owner = tree
                for section in sections:
                    owner = owner[section]
                owner[last] = value
            (path / f"{name}.json").write_text(json.dumps(tree))
        return path

    return make


def test_differences_and_p_values_are_those_of_the_seeds(both, tmp_path, capsys):
    compare(*both, output=tmp_path / "found.md")
    rows = {row["metric"]: row for row in rows_of((tmp_path / "found.md").read_text())}
    assert {"validation.loss", "validation.bleu", "test.loss", "test.bleu", "train.nll"} <= rows.keys()
    values = [
        [member["validation"]["loss"] for member in json.loads((path / "result.json").read_text())["members"]]
        for path in both
    ]
    row = rows["validation.loss"]
    assert float(row["difference"].split(" ")[0]) == pytest.approx(np.mean(values[1]) - np.mean(values[0]), rel=1e-2)
    assert float(row["p, t over seeds"]) == pytest.approx(stats.ttest_rel(*values).pvalue, rel=1e-2)
    assert float(row["p, sign flips"]) == 0.5
    assert row["run"] == str(both[1])
    assert row["p, sentences swapped"] == ""
    assert 0 < float(rows["test.bleu"]["p, sentences swapped"]) <= 1
    capsys.readouterr()


def test_a_sentence_a_metric_says_which_run_does_better_and_whether_that_is_shown(both, changed, capsys):
    first, second = ([one["validation"]["loss"] for one in result_of(path)["members"]] for path in both)
    how = "does better than" if np.mean(second) < np.mean(first) else "does worse than"
    compare(*both, metrics=("validation.loss", "test.bleu"))
    of_loss, of_bleu, *_ = capsys.readouterr().out.split("\n\n")
    assert of_loss.startswith(f"By validation.loss over 2 seeds, {both[1]} {how} {both[0]}")
    assert of_bleu.startswith(f"By test.bleu over 2 seeds, {both[1]} does ")
    found = compare_values(changed, both, capsys, [v - 0.5 - s / 1e6 for s, v in enumerate(first)])
    assert re.search(r"does better than .*: the difference is -0.5.* \[-0.5.*\], shown \(p <.001, Holm\)\.$", found)
    found = compare_values(changed, both, capsys, [first[0] + 1.0, first[1] - 0.9])
    assert re.search(r"does worse than .*, but the difference is 0\.1 .*not shown to be more than chance \(p = ", found)
    assert "does as well as" in (found := compare_values(changed, both, capsys, first))
    assert "; the difference is 0" in found


def compare_values(changed, both, capsys, losses):
    """The sentence of validation.loss where the second run's seeds have these."""
    members = result_of(both[0])["members"]
    found = [{**one, "validation": {"loss": loss}} for one, loss in zip(members, losses, strict=True)]
    compare(both[0], changed({}, {"members": found}), metrics=("validation.loss",))
    return capsys.readouterr().out.split("\n\n")[0]


def test_perplexities_are_compared_by_ratios_beside_the_differences_of_others(both, capsys):
    compare(*both, metrics=("validation.loss", "validation.perplexity"))
    out = capsys.readouterr().out
    of_loss, of_perplexity = rows_of(out)
    assert (of_loss["ratio"], of_perplexity["difference"]) == ("", "")
    ratio, difference = of_perplexity["ratio"].split(" ")[0], of_loss["difference"].split(" ")[0]
    assert float(ratio.removeprefix("×")) == pytest.approx(np.exp(float(difference)), rel=1e-2)
    assert of_perplexity["p, t over seeds"] == of_loss["p, t over seeds"]
    assert "A ratio is" in out


def test_a_seed_without_a_value_is_told_and_not_counted(both, changed, capsys):
    members = result_of(both[1])["members"]
    members[1]["validation"]["loss"] = None
    compare(both[0], changed({}, {"members": members}), metrics=("validation.loss",))
    out = capsys.readouterr().out
    assert rows_of(out)[0]["seeds of both"] == "1 of 2"
    assert out.startswith("By validation.loss over 1 of 2 seeds, ")
    assert ", without a test." in out


def test_bleu_over_other_tokens_is_refused_and_what_does_not_depend_on_them_is_recommended(both, changed, capsys):
    other = changed({"evaluate.bleu_tokens": "moses"})
    with pytest.raises(UserError, match=r"differ in evaluate.bleu_tokens, .* Choose another: --metric=validation.loss"):
        compare(both[0], other, metrics=("test.bleu",))
    compare(both[0], other, metrics=("test.bleu_13a",))
    capsys.readouterr()
    compare(both[0], other)
    assert {"validation.loss", "validation.chrf"} <= {row["metric"] for row in rows_of(capsys.readouterr().out)}


def test_scores_that_were_counted_otherwise_are_of_other_sentences_and_are_refused(both, changed):
    members = result_of(both[1])["members"]
    for one in members:
        one["test"]["bleu_signature"] = one["test"]["bleu_signature"].replace("tok:13a", "tok:moses")
    other = changed({}, {"members": members})
    digests = [sentence_scores(path, "test.bleu", result_of(path))[1] for path in (*both, other)]
    assert digests[0] == digests[1] != digests[2]
    with pytest.raises(UserError, match=r"differ in what sacreBLEU counted \(.*tok:13a.*tok:moses"):
        compare(both[0], other, metrics=("test.bleu",))


def test_where_words_are_unknown_vocabularies_are_compared_by_translations_alone(both, changed):
    other = changed({"data.min_count": 6}, {"data.fingerprint": "other"})
    for name in ("validation.perplexity_per_word", "validation.loss"):
        with pytest.raises(UserError, match=r"differ in data.min_count, .* Choose another: --metric=validation.bleu"):
            compare(both[0], other, metrics=(name,))


def test_where_the_answer_cannot_be_written_nothing_is_compared(both, tmp_path, monkeypatch):
    monkeypatch.setattr("attention_jax.launcher.modes.compare_runs", lambda *asked: pytest.fail("it was compared"))
    with pytest.raises(UserError, match=r"--output=.*/nodir/x.md: there is no folder"):
        compare(*both, output=tmp_path / "nodir" / "x.md")


def test_a_sweep_names_its_cells(both, tmp_path):
    (tmp_path / "cells" / "0a1b").mkdir(parents=True)
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "cells" / "0a1b" / "result.json").write_text("{}")
    with pytest.raises(UserError, match=r"a sweep, and --mode=compare is of one run: .* 0a1b: --runs=.*/cells/0a1b"):
        compare(both[0], tmp_path)


def test_more_than_two_are_compared_with_the_first(both, changed, capsys):
    third = changed({"optimizer.learning_rate": 0.5})
    compare(*both, third, metrics=("validation.loss",))
    out = capsys.readouterr().out
    rows = rows_of(out)
    assert [row["run"] for row in rows] == [str(both[1]), str(third)]
    assert rows[0]["difference"] == rows[1]["difference"]
    assert "95%" in out


REFUSED = [
    ({"data.seed": 5}, {"data.fingerprint": "f"}, ("validation.loss",), "is of other data than .*config.data.seed"),
    ({}, {"seeds": [7, 8]}, (), r"share no seed \(\[0, 1\] and \[7, 8\]\)"),
    ({}, {"status": "diverged"}, (), "is not finished"),
    ({"data.vocabulary": 99}, {}, ("validation.loss",), "the runs differ in data.vocabulary"),
    ({"experiment": "positional_encoding"}, {}, (), "is of experiment 'positional_encoding', and .* of 'nmt'"),
    ({}, {}, ("validation.blue",), "no metric of that name; the nearest is 'bleu'"),
    ({}, {}, ("test.beams.bleu",), "has no such value"),
    ({}, {}, ("cost.seconds",), "is of all seeds of a run together, and runs are compared seed by seed"),
]


@pytest.mark.parametrize(("config", "result", "metrics", "message"), REFUSED)
def test_what_does_not_compare_is_refused_in_a_line(both, changed, config, result, metrics, message):
    with pytest.raises(UserError, match=message):
        compare(both[0], changed(config, result), metrics=metrics)


def test_a_run_that_is_not_there_or_not_finished_or_named_twice_is_refused(both, changed, tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        compare(both[0], tmp_path)
    unfinished = changed()
    (unfinished / "result.json").unlink()
    with pytest.raises(UserError, match="is not finished. Go on with it: --mode=train"):
        compare(both[0], unfinished)
    with pytest.raises(UserError, match="the same run twice"):
        compare(both[0], both[0])


def test_bleu_of_the_same_sentences_compares_models_of_other_vocabularies(both, changed, capsys):
    compare(both[0], changed({"data.vocabulary": 99}, {"data.fingerprint": "other"}), metrics=("test.bleu",))
    assert rows_of(capsys.readouterr().out)[0]["metric"] == "test.bleu"
