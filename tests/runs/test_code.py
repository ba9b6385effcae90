"""Code is told by what it says, and a run's by what it imports."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from support import ROOT

from attention_jax.runs import code
from attention_jax.runs.provenance import provenance
from attention_jax.runs.source import read_source


def forget():
    """What this process has read of the code."""
    code._read.cache_clear()
    code.code_of.cache_clear()


FILES = {
    "launch.py": "",
    "loose.py": "z = 1\n",
    "lab/__init__.py": "",
    "lab/one.py": "from lab import two\nfrom attention_jax.ops import scoring\nimport json\n",
    "lab/two.py": '"""What it does."""\n\nx = 1\n',
    "lab/three.py": "y = 1\n",
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository, on the path, in which `lab.one` imports `lab.two`; and the commit of what is in it."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(code, "ROOT", tmp_path)
    monkeypatch.setattr("attention_jax.runs.provenance.ROOT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
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


def own_files():
    """The files of `lab.one`'s code that are not this package's."""
    forget()
    return {name for name in code.imported("lab.one") if not name.startswith("attention_jax")}


def version():
    forget()
    return code.code_of("lab.one")


def test_code_has_changed_where_what_the_run_imports_says_something_else(checkout):
    folder, commit = checkout
    paths = own_files()
    assert paths == {"lab/__init__.py", "lab/one.py", "lab/two.py"}
    assert code.changes(commit, paths) == []
    (folder / "lab/three.py").write_text("y = 2\n")  # which the run does not import
    (folder / "lab/two.py").write_text('"""What it does, said better."""\n\nx = 1  # one\n')
    assert code.changes(commit, paths) == []
    (folder / "lab/two.py").write_text("x = 2\n")
    assert code.changes(commit, paths) == ["lab/two.py"]
    assert code.changes("0" * 7, paths) is None


def test_code_that_is_not_committed_is_no_commits(checkout):
    folder, commit = checkout
    assert provenance.__wrapped__()["code"] == {"commit": commit, "changed": False}
    (folder / "experiments").mkdir()
    (folder / "experiments/mine.py").write_text("x = 1\n")
    assert code.changes(commit, ["experiments/mine.py"]) == ["experiments/mine.py"]
    assert provenance.__wrapped__()["code"] == {"commit": commit, "changed": True}


def test_a_version_is_of_what_the_modules_import_say_and_of_nothing_else(checkout):
    folder, _ = checkout
    first = version()
    assert {"lab/one.py", "lab/two.py", "attention_jax/__init__.py", "attention_jax/ops/scoring.py"} <= set(first.files)
    assert not any(name.startswith("json") for name in first.files)
    (folder / "lab/three.py").write_text("y = 2\n")
    (folder / "lab/two.py").write_text('"""Said better."""\n\nx = 1  # one\n')
    assert version() == first
    (folder / "lab/two.py").write_text("x = 2\n")
    changed = version()
    assert changed.version != first.version
    assert {path for path in first.files if first.files[path] != changed.files[path]} == {"lab/two.py"}


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("from .three import y", "lab/three.py"),
        ("from . import three", "lab/three.py"),
        ("import loose", "loose.py"),
        ("def f():\n    from loose import z", "loose.py"),
        ("from parts.inner import deep", "parts/inner/deep.py"),
        ("from parts.inner.deep import x", "parts/inner/deep.py"),
    ],
)
def test_an_edit_of_what_a_users_module_imports_in_any_way_is_another_version(checkout, line, file):
    folder, _ = checkout
    (folder / "parts/inner").mkdir(parents=True)  # packages without __init__.py
    (folder / "parts/inner/deep.py").write_text("x = 1\n")
    (folder / "lab/one.py").write_text(f"{line}\n")
    first = version()
    assert file in first.files
    (folder / file).write_text("other = 2\n")
    assert version().version != first.version


def test_a_part_of_this_package_that_is_used_and_not_imported_by_its_name_is_found(checkout):
    folder, _ = checkout
    (folder / "lab/one.py").write_text("import attention_jax as a\n\n\ndef f():\n    return a.ops.relative\n")
    assert "attention_jax/ops/relative.py" in version().files


def test_what_is_installed_and_what_is_pythons_is_not_followed(checkout, monkeypatch):
    folder, _ = checkout
    site = folder / ".venv/lib/python3/site-packages"
    (site / "bought").mkdir(parents=True)
    (site / "bought/__init__.py").write_text("")
    monkeypatch.syspath_prepend(site)
    (folder / "lab/one.py").write_text("import json\nimport bought\nimport jax.numpy\nimport nowhere\n")
    assert own_files() == {"lab/__init__.py", "lab/one.py"}


def test_the_file_is_the_one_that_python_runs(checkout, tmp_path_factory, monkeypatch):
    """Both the working folder and the checkout have it: the first of the path runs."""
    folder, other = checkout[0], tmp_path_factory.mktemp("other")
    (other / "loose.py").write_text("z = 2\n")
    (folder / "lab/one.py").write_text("import loose\n")
    assert code.imported("lab.one")["loose.py"] == folder / "loose.py"
    monkeypatch.syspath_prepend(other)
    forget()
    assert code.imported("lab.one")["loose.py"] == other / "loose.py"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "loose", SimpleNamespace(__file__=str(other / "loose.py")))  # imported before
    assert code.imported("lab.one")["loose.py"] == other / "loose.py"


def test_what_a_file_says_is_kept_and_read_again_where_what_is_kept_is_damaged(checkout, tmp_path, monkeypatch):
    configured = SimpleNamespace(jax_compilation_cache_dir=str(tmp_path / "cache"))
    monkeypatch.setattr(code, "jax", SimpleNamespace(config=configured))
    first, kept = version(), [*(tmp_path / "cache/said").iterdir()]
    with monkeypatch.context() as patch:
        patch.setattr(code, "read_source", None)
        assert version() == first
    for damaged in ("", '["digest", ["lab', "{}", "[1, 2]"):
        for file in kept:
            file.write_text(damaged)
        assert version() == first


@pytest.mark.parametrize("name", ["nmt", "language_model", "kernel_regression"])
def test_what_reads_or_starts_runs_is_no_code_of_theirs(name):
    files = code.code_of(f"experiments.{name}", "attention_jax.sweeps.population").files
    rooms = ("attention_jax/launcher/", "attention_jax/reports/", "attention_jax/sweeps/")
    modules = [path for path in files if path.startswith(rooms) and not path.endswith("__init__.py")]
    assert modules == ["attention_jax/sweeps/population.py"]
    assert not [path for path in files if path.endswith("opened.py")]
    assert {f"experiments/{name}.py", "attention_jax/runs/training.py"} <= set(files)


@pytest.mark.parametrize(
    ("name", "makers"),
    [
        ("search", {"attention_jax/sweeps/regret.py", "attention_jax/sweeps/study.py"}),
        ("explanation", {"attention_jax/tasks/translation/opened.py", "attention_jax/tasks/opened.py"}),
        ("heads", {"attention_jax/tasks/opened.py"}),
    ],
)
def test_what_measures_finished_runs_is_code_of_the_experiments_that_measure_with_it(name, makers):
    assert makers <= set(code.code_of(f"experiments.{name}").files)


def test_what_trains_the_cells_of_a_sweep_needs_nothing_else_of_its_room():
    """It alone of the room is their code."""
    text = (ROOT / "attention_jax/sweeps/population.py").read_text(encoding="utf-8")
    assert not [name for name in read_source(text).imports if name.startswith("attention_jax.sweeps")]


def test_a_result_is_told_from_todays_code_by_its_version_and_by_its_commit(checkout):
    folder, commit = checkout
    here = {"commit": commit, "changed": False, "version": version().version}
    unnamed = {key: value for key, value in here.items() if key != "version"}  # of a cell, or of an older version
    assert code.changed_since([here, unnamed], version()) == ""
    (folder / "lab/two.py").write_text("x = 2\n")
    for one in (here, unnamed):
        assert code.changed_since([one], version()) == "changed since: lab/two.py"
    for one in ({**here, "changed": True}, {**here, "commit": "", "changed": None}):
        unknown = f"which files have changed since is not known ({here['version']} there, {version().version} now)"
        assert code.changed_since([one], version()) == unknown
    assert "not known (no commit there" in code.changed_since([{"commit": "", "changed": None}], version())


def test_three_files_are_named_and_the_others_counted():
    assert code.shown("ba") == "a, b"
    assert code.shown("edcba") == "a, b, c and 2 more"
