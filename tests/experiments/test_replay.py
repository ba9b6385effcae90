"""What today's code computes beside the code of a kept answer."""

import json

import pytest

from experiments import _replay, _results

THERE = {
    "train": {"loss": 0.5},
    "seconds": 3.0,
    "code": {"commit": "abc1234"},
    "curves": [[1, 0.25], [2, float("nan")]],
    "cells": [{"overrides": {"a": 1}, "seed": 0, "metrics": {"loss": 0.1 + 0.2, "cost.seconds": 1.0, "seconds": 2.0}}],
}


def changed(**sections):
    return json.loads(json.dumps(THERE)) | sections


def test_numbers_that_both_have_are_compared_to_the_last_bit_and_clocks_are_not():
    same, differ = _replay.compared(
        THERE, changed(seconds=9.0, code={"commit": "def5678", "changed": False}, more={"x": 1})
    )
    assert len(same) == 6  # a loss, two rows of two, a cell's loss
    assert not differ
    same, differ = _replay.compared(THERE, changed(train={"loss": 0.5000000000000001}))
    assert differ == {"train.loss": (0.5, 0.5000000000000001)}
    assert len(same) == 5


def test_cells_are_compared_by_what_they_set_wherever_they_stand():
    other = {"overrides": {"a": 2}, "seed": 0, "metrics": {"loss": 7.0}}
    same, differ = _replay.compared(THERE, changed(cells=[other, *THERE["cells"]]))
    assert not differ
    assert any("cells" in key and key.endswith("metrics.loss") for key in same)
    (key,) = _replay.compared(changed(cells=[other]), changed(cells=[other | {"metrics": {"loss": 7.5}}]))[1]
    assert '{"a": 2}' in key


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A kept answer, and what the code of its commit and today's are to find: its file, and what was started."""
    monkeypatch.setattr(_results, "RESULTS", tmp_path)
    command = "python launch.py --config=configs/nmt.py '--config.seeds=(0,1)'"
    code = {"commit": "abc1234", "changed": False}
    (tmp_path / "one.json").write_text(json.dumps({"experiment": "nmt", "command": command, "code": code}))
    started = []

    def replay(there, now, *flags):
        results = iter([there, now])

        def start(*command, where):
            started.append(command)
            if command[1] == "launch.py":
                (workdir,) = (_replay.Path(flag.split("=")[1]) for flag in command if flag.startswith("--workdir"))
                workdir.mkdir(parents=True)
                (workdir / "result.json").write_text(json.dumps(next(results)))

        monkeypatch.setattr(_replay, "_started", start)
        _replay.main(["", "one", *flags])

    return tmp_path / "one.json", replay, started


def test_an_answer_whose_code_still_computes_it_says_so_without_places_of_this_machine(kept):
    path, replay, started = kept
    now = changed(code={"commit": "def5678", "changed": False, "version": "0" * 12})
    replay(THERE, now, "--config.train.steps=20", "--config.data.path=/home/me/fra.txt")
    expected = {"code": now["code"], "flags": ["--config.train.steps=20"], "numbers": 6}
    assert json.loads(path.read_text())["replayed"] == expected
    (first, second) = (command[2:-1] for command in started if command[1] == "launch.py")
    flags = ["--config.seeds=(0,1)", "--config.train.steps=20", "--config.data.path=/home/me/fra.txt"]
    assert [*first] == [*second] == ["--config=configs/nmt.py", *flags]
    assert started[0][:3] == ("git", "worktree", "add")
    assert started[0][-1] == "abc1234"
    assert started[-1][:3] == ("git", "worktree", "remove")


@pytest.mark.parametrize(
    "now",
    [
        changed(train={"loss": 0.6}, code={"commit": "def5678", "changed": False}),
        changed(code={"commit": "def5678", "changed": True}),
    ],
)
def test_an_answer_is_left_as_it_is_where_a_number_differs_or_the_code_is_not_committed(kept, now):
    path, replay, _ = kept
    before = path.read_text()
    with pytest.raises(SystemExit, match="left as it is"):
        replay(THERE, now)
    assert path.read_text() == before


def test_an_answer_that_is_not_kept_is_refused_by_name(kept):
    with pytest.raises(SystemExit, match=r"error: other: no other\.json"):
        _replay.main(["", "other"])


def test_what_is_listed_says_that_changed_code_computes_the_same(monkeypatch):
    replayed = {"code": {"commit": "def5678"}, "numbers": 7, "flags": ["--config.train.steps=20"]}
    monkeypatch.setattr(_results, "changes", lambda commit, files: [] if commit == "def5678" else ["a.py"])
    assert _results._shown(["a.py"], replayed, ()) == "changed; the same 7 numbers in short (--config.train.steps=20)"
    monkeypatch.setattr(_results, "changes", lambda commit, files: ["a.py"])
    assert _results._shown(["a.py"], replayed, ()) == "changed: a.py"
