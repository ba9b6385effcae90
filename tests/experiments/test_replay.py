"""What today's code computes beside the code of a kept answer."""

import inspect
import json
import runpy

import numpy as np
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


def test_numbers_that_both_have_are_compared_and_clocks_are_not():
    both = _replay.compared(THERE, changed(seconds=9.0, code={"commit": "def5678", "changed": False}, more={"x": 1}))
    assert len(both) == 5  # a loss, two rows of two of which one is a number in neither, a cell's loss
    both = _replay.compared(THERE, changed(train={"loss": 0.5000000000000001}))
    assert both["train.loss"] == (0.5, 0.5000000000000001)
    assert _replay.distance(*both["train.loss"]) == pytest.approx(2e-16, rel=0.2)
    assert _replay.distance(-1.0, 3.0) == pytest.approx(4 / 3)
    assert _replay.distance(0, -0.0) == 0


def test_what_is_no_number_any_more_is_infinitely_far_from_the_number_that_it_was():
    """A result has null for it."""
    both = _replay.compared(THERE, changed(train={"loss": None}))
    assert _replay.distance(*both["train.loss"]) == np.inf


def test_cells_are_compared_by_what_they_set_wherever_they_stand():
    other = {"overrides": {"a": 2}, "seed": 0, "metrics": {"loss": 7.0}}
    both = _replay.compared(THERE, changed(cells=[other, *THERE["cells"]]))
    assert all(repr(there) == repr(now) for there, now in both.values())
    (key,) = (key for key in both if key.endswith("metrics.loss"))
    assert '{"a": 1}' in key


def test_rows_of_an_order_are_compared_by_their_setting_wherever_they_stand():
    first, second = ({"group": "", "setting": name, "difference": value} for name, value in (("a", 0.0), ("b", 0.5)))
    both = _replay.compared(*({"orders": {"loss": rows}} for rows in ([first, second], [second, first])))
    assert sorted(both.values()) == [(0.0, 0.0), (0.5, 0.5)]


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


def test_an_answer_says_how_near_todays_code_comes_without_places_of_this_machine(kept):
    path, replay, started = kept
    now = changed(train={"loss": 0.4}, code={"commit": "def5678", "changed": False, "version": "0" * 12}, cells=[])
    replay(THERE, now, "--config.train.steps=20", "--config.data.path=/home/me/fra.txt")
    found = json.loads(path.read_text())["replayed"]
    assert found.pop("furthest") == pytest.approx(0.2)
    assert found == {"code": now["code"], "flags": ["--config.train.steps=20"], "numbers": 4, "same": 3, "gone": 1}
    (first, second) = (command[2:-1] for command in started if command[1] == "launch.py")
    flags = ["--config.seeds=(0,1)", "--config.train.steps=20", "--config.data.path=/home/me/fra.txt"]
    assert [*first] == [*second] == ["--config=configs/nmt.py", *flags]
    assert started[0][:3] == ("git", "worktree", "add")
    assert started[0][-1] == "abc1234"
    assert started[-1][:3] == ("git", "worktree", "remove")


def test_todays_code_alone_may_run_the_whole_and_is_compared_with_what_is_kept(kept):
    path, replay, started = kept
    path.write_text(json.dumps(json.loads(path.read_text()) | {"train": {"loss": 0.5}}))
    replay(changed(code={"commit": "def5678", "changed": False}), None, "--kept", "--config.data.path=/home/me/fra.txt")
    found = json.loads(path.read_text())["replayed"]
    assert (found["numbers"], found["same"], found["gone"], found["flags"]) == (1, 1, 0, ["--kept"])
    ((_, _, *flags, _),) = started
    assert flags == ["--config=configs/nmt.py", "--config.seeds=(0,1)", "--config.data.path=/home/me/fra.txt"]


def test_of_some_seeds_a_sweeps_cells_are_run_and_compared_with_those_kept(kept):
    path, replay, started = kept
    others = [{**cell, "seed": 1} for cell in THERE["cells"]]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cells": [*THERE["cells"], *others]}))
    now = changed(code={"commit": "def5678", "changed": False})
    replay(now, None, "--seeds=0", "--kept", "--config.sweep.engine=inline")
    found = json.loads(path.read_text())["replayed"]
    assert (found["numbers"], found["same"], found["gone"]) == (1, 1, 0)
    assert found["flags"] == ["--seeds=0", "--kept", "--config.sweep.engine=inline"]
    ((_, _, config, *flags, _),) = started
    assert flags == ["--config.seeds=(0,1)", "--config.sweep.engine=inline"]
    assert config.startswith("--config=/")
    assert config.endswith("/now_config/nmt.py")


def test_of_some_seeds_each_version_runs_the_cells_of_its_own_config(kept):
    path, replay, started = kept
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cells": THERE["cells"]}))
    replay(THERE, changed(code={"commit": "def5678", "changed": False}), "--seeds=0")
    assert json.loads(path.read_text())["replayed"]["flags"] == ["--seeds=0"]
    configs = [command[2].rsplit("/", 2)[1:] for command in started if command[1] == "launch.py"]
    assert configs == [["there_config", "nmt.py"], ["now_config", "nmt.py"]]


def test_a_config_of_some_seeds_has_their_cells_and_all_else_of_the_whole(tmp_path):
    asked = ["--config=configs/positional_encoding.py:deeper", "--mode=sweep"]
    flags = _replay.of_seeds(asked, {1}, tmp_path / "config", _replay.ROOT)
    assert flags == [f"--config={tmp_path}/config/positional_encoding.py:deeper", "--mode=sweep"]
    few = runpy.run_path(str(tmp_path / "config" / "positional_encoding.py"))
    whole = runpy.run_path(str(_replay.ROOT / "configs" / "positional_encoding.py"))
    assert few["sweep"]("deeper") == [cell for cell in whole["sweep"]("deeper") if cell["seeds"] == (1,)]
    assert len(few["sweep"]("deeper")) == 20
    assert inspect.signature(few["sweep"]) == inspect.signature(whole["sweep"])
    assert few["get_config"]("deeper").to_json() == whole["get_config"]("deeper").to_json()


@pytest.mark.parametrize(
    ("flag", "why"), [("--seeds=5", "no cells of these seeds"), ("--seeds=one", "needs whole numbers, as --seeds=0,1")]
)
def test_seeds_that_are_no_numbers_or_not_kept_are_refused_before_anything_runs(kept, flag, why):
    path, replay, started = kept
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cells": THERE["cells"]}))
    with pytest.raises(SystemExit, match=f"error: {flag}: .*{why}"):
        replay(THERE, THERE, flag)
    assert not started


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({"code": {"commit": "def5678", "changed": False}}, "no number in common"),
        (changed(code={"commit": "def5678", "changed": True}), "the code has changes: commit them"),
    ],
)
def test_an_answer_is_left_as_it_is_where_nothing_can_be_said(kept, now, why):
    path, replay, _ = kept
    before = path.read_text()
    with pytest.raises(SystemExit, match=f"error: one: {why}"):
        replay(THERE, now)
    assert path.read_text() == before


def test_an_answer_that_is_not_kept_is_refused_by_name(kept):
    with pytest.raises(SystemExit, match=r"error: other: no other\.json"):
        _replay.main(["", "other"])


def test_what_is_listed_says_how_near_changed_code_comes(monkeypatch):
    replayed = {
        "code": {"commit": "def5678"},
        "numbers": 7,
        "same": 7,
        "gone": 0,
        "furthest": 0.0,
        "flags": ["--config.draws=2"],
    }
    monkeypatch.setattr(_results, "changes", lambda commit, files: [] if commit == "def5678" else ["a.py"])
    said = _results._shown(["a.py"], replayed, ())
    assert said == "changed; run again with --config.draws=2: 7 of 7 numbers are the same"
    said = _results._shown(["a.py"], replayed | {"same": 5, "furthest": 0.0002, "gone": 3, "flags": []}, ())
    assert said == "changed; run again: 5 of 7 numbers are the same, the others within 2e-04, 3 are gone"
    monkeypatch.setattr(_results, "changes", lambda commit, files: ["b.py"])
    later = "changed; run again with --config.draws=2: 7 of 7 numbers are the same; since then changed: b.py"
    assert _results._shown(["a.py", "b.py"], replayed, ()) == later
    monkeypatch.setattr(_results, "changes", lambda commit, files: None)
    assert _results._shown(["a.py"], replayed, ()) == "changed: a.py"
