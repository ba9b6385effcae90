"""Code is told by what it says, and a run's by what it imports."""

import subprocess

import pytest

from attention_jax.runs import code
from attention_jax.runs.provenance import provenance


def forget():
    """What this process has read of the code."""
    code._read.cache_clear()
    code.code_of.cache_clear()


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
    monkeypatch.setattr(code, "ROOT", tmp_path)
    monkeypatch.setattr("attention_jax.runs.provenance.ROOT", tmp_path)
    forget()

    def git(*arguments):
        who = ("-c", "user.name=n", "-c", "user.email=e")
        return subprocess.run(
            ("git", *who, *arguments), cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    yield tmp_path, git("rev-parse", "--short", "HEAD").strip()
    forget()


def test_code_has_changed_where_what_the_run_imports_says_something_else(checkout):
    folder, commit = checkout
    paths = code.imported("experiments.one")
    assert "attention_jax/two.py" in paths
    assert "attention_jax/three.py" not in paths
    assert code.changes(commit, paths) == []
    (folder / "attention_jax/three.py").write_text("y = 2\n")  # which the run does not import
    (folder / "attention_jax/two.py").write_text('"""What it does, said better."""\n\nx = 1  # one\n')
    assert code.changes(commit, paths) == []
    (folder / "attention_jax/two.py").write_text("x = 2\n")
    assert code.changes(commit, paths) == ["attention_jax/two.py"]
    assert code.changes("0" * 7, paths) is None


def test_code_that_is_not_committed_is_no_commits(checkout):
    folder, commit = checkout
    assert provenance.__wrapped__()["code"] == {"commit": commit, "changed": False}
    (folder / "experiments/mine.py").write_text("from attention_jax import three\n")
    assert code.changes(commit, code.imported("experiments.mine")) == ["experiments/mine.py"]
    assert provenance.__wrapped__()["code"] == {"commit": commit, "changed": True}


def test_a_version_is_of_what_the_modules_import_say_and_of_nothing_else(checkout):
    folder, _ = checkout
    (folder / "attention_jax/reports").mkdir()
    (folder / "attention_jax/reports/page.py").write_text("z = 1\n")
    (folder / "experiments/one.py").write_text(
        "from attention_jax import two\nfrom attention_jax.reports import page\n"
    )

    def version():
        forget()
        return code.code_of("experiments.one")

    first = version()
    assert set(first.files) == {
        "experiments/__init__.py",
        "experiments/one.py",
        "attention_jax/__init__.py",
        "attention_jax/two.py",
    }
    (folder / "attention_jax/three.py").write_text("y = 2\n")
    (folder / "attention_jax/reports/page.py").write_text("z = 2\n")  # which reads what runs have written
    (folder / "attention_jax/two.py").write_text('"""Said better."""\n\nx = 1  # one\n')
    assert version() == first
    (folder / "attention_jax/two.py").write_text("x = 2\n")
    changed = version()
    assert changed.version != first.version
    assert {path for path in first.files if first.files[path] != changed.files[path]} == {"attention_jax/two.py"}


def test_an_experiment_outside_the_checkout_is_followed_into_its_own_package(tmp_path, monkeypatch):
    (tmp_path / "mylab").mkdir()
    (tmp_path / "mylab/__init__.py").write_text("")
    (tmp_path / "mylab/study.py").write_text(
        "import json\nfrom mylab import ours\nfrom attention_jax.ops import scoring\n"
    )
    (tmp_path / "mylab/ours.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    files = code.code_of("mylab.study").files
    assert {"mylab/study.py", "mylab/ours.py", "attention_jax/ops/scoring.py"} <= set(files)
    assert not any(path.startswith("json") for path in files)


def test_three_files_are_named_and_the_others_counted():
    assert code.shown("ba") == "a, b"
    assert code.shown("edcba") == "a, b, c and 2 more"
