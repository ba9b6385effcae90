"""--mode=compare says what the seeds of two runs say, and refuses what cannot be told."""

import json
import shutil

import numpy as np
import pytest
from scipy import stats

from attention_jax.errors import UserError
from attention_jax.launcher import experiments
from attention_jax.launcher.modes import MODES
from attention_jax.runs.experiment import Request
from attention_jax.sweeps.folder import stored_config


def compare(*paths, metrics=(), output="-"):
    config = stored_config(paths[0])
    request = Request(config, paths[0], 0.0, False, runs=paths, metrics=metrics, output=str(output))
    MODES["compare"](experiments.load("nmt"), request)


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
        path.mkdir()
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
