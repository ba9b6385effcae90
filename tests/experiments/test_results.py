"""Kept answers say which code made them, and whether it has changed since."""

import json

from experiments import _results


def test_what_is_kept_names_no_folder_of_this_machine(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"experiment": "nmt", "data": {"path": "/home/me/data/fra.txt"}}))
    command = "python launch.py --config=configs/nmt.py --config.data.path=/home/me/data/fra.txt --workdir=/home/me/run"
    (run / "result.json").write_text(json.dumps({"command": command}))
    kept = _results.evidence(run)
    assert kept["command"] == "python launch.py --config=configs/nmt.py --config.data.path=fra.txt"
    assert "/home" not in json.dumps(kept)


def test_of_several_folders_the_names_are_kept(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"runs": "/home/me/runs/one,/home/me/runs/other"}))
    command = "python launch.py --config=configs/explanation.py --config.runs=/home/me/runs/one,/home/me/runs/other"
    (tmp_path / "result.json").write_text(json.dumps({"command": command}))
    kept = _results.evidence(tmp_path)
    assert kept["config"]["runs"] == "one,other"
    assert kept["command"] == "python launch.py --config=configs/explanation.py --config.runs=one,other"


def test_every_kept_answer_has_its_commit_its_command_and_whether_the_tree_was_changed():
    kept = [json.loads(path.read_text()) for path in _results.RESULTS.glob("*.json")]
    assert kept
    for answer in kept:
        for code in answer["code"] if isinstance(answer["code"], list) else [answer["code"]]:
            assert isinstance(code["changed"], bool)
            assert code["commit"]
        assert answer["command"].startswith("python launch.py --config=configs/")
        assert "config" in answer
