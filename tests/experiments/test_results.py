"""Kept answers say which code made them, and whether it has changed since."""

import json
import subprocess

import pytest

from attention_jax.runs.provenance import provenance
from experiments import _results


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository of three modules, of which `experiments.one` imports the second; commits what is in it."""
    files = {
        "launch.py": "",
        "experiments/__init__.py": "",
        "experiments/one.py": "from attention_jax import two\n",
        "attention_jax/__init__.py": "",
        "attention_jax/two.py": '"""What it does."""\n\nx = 1\n',
        "attention_jax/three.py": "y = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(_results, "ROOT", tmp_path)
    monkeypatch.setattr("attention_jax.runs.provenance.ROOT", tmp_path)
    _results.imported.cache_clear()

    def git(*arguments):
        who = ("-c", "user.name=n", "-c", "user.email=e")
        return subprocess.run(
            ("git", *who, *arguments), cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    yield tmp_path, git("rev-parse", "--short", "HEAD").strip()
    _results.imported.cache_clear()


def test_code_has_changed_where_what_the_run_imports_says_something_else(checkout):
    folder, commit = checkout
    paths = _results.imported("experiments.one")
    assert "attention_jax/two.py" in paths
    assert "attention_jax/three.py" not in paths
    assert _results.changes(commit, paths) == []
    (folder / "attention_jax/three.py").write_text("y = 2\n")  # which the run does not import
    (folder / "attention_jax/two.py").write_text('"""What it does, said better."""\n\nx = 1  # one\n')
    assert _results.changes(commit, paths) == []
    (folder / "attention_jax/two.py").write_text("x = 2\n")
    assert _results.changes(commit, paths) == ["attention_jax/two.py"]
    assert _results.changes("0" * 7, paths) is None


def test_code_that_is_not_committed_is_no_commits(checkout):
    folder, commit = checkout
    assert provenance.__wrapped__()["code"] == {"commit": commit, "changed": False}
    (folder / "experiments/mine.py").write_text("from attention_jax import three\n")
    assert _results.changes(commit, _results.imported("experiments.mine")) == ["experiments/mine.py"]
    assert provenance.__wrapped__()["code"] == {"commit": commit, "changed": True}


def test_what_is_kept_names_no_folder_of_this_machine(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"experiment": "nmt", "data": {"path": "/home/me/data/fra.txt"}}))
    command = "python launch.py --config=configs/nmt.py --config.data.path=/home/me/data/fra.txt --workdir=/home/me/run"
    (run / "result.json").write_text(json.dumps({"command": command}))
    kept = _results.evidence(run)
    assert kept["command"] == "python launch.py --config=configs/nmt.py --config.data.path=fra.txt"
    assert "/home" not in json.dumps(kept)


def test_every_kept_answer_has_its_commit_its_command_and_whether_the_tree_was_changed():
    kept = [json.loads(path.read_text()) for path in _results.RESULTS.glob("*.json")]
    assert kept
    for answer in kept:
        assert isinstance(answer["code"]["changed"], bool)
        assert answer["code"]["commit"]
        assert answer["command"].startswith("python launch.py --config=configs/")
        assert "config" in answer
