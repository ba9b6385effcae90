"""Which Python `make` takes, and what it is told."""

import shutil
import subprocess
import sys

import pytest
from support import ROOT


@pytest.fixture
def machine(tmp_path):
    """A folder that is all of PATH, and what `make test` would do there."""

    def add(name, works=True):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\n{f"exec {sys.executable}" if works else "exit 127 #"} "$@"\n')
        program.chmod(0o755)

    def make(*arguments):
        command = [shutil.which("make"), "--dry-run", "test", f"VENV={tmp_path}/venv", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
        ).stdout

    add("python3")
    return tmp_path, add, make


def test_the_newest_tested_python_is_taken(machine):
    _, add, make = machine
    add("python3.12")
    add("python3.13")
    assert "\npython3.13 -m venv" in make()
    assert "\npython3.12 -m venv" in make("PYTHON=python3.12")


def test_a_python_that_cannot_make_an_environment_is_passed_over(machine):
    _, add, make = machine
    add("python3.13", works=False)
    assert "\npython3 -m venv" in make()
    add("python3.12")
    assert "\npython3.12 -m venv" in make()


def test_what_pyenv_has_is_taken_though_it_is_not_selected(machine):
    folder, add, make = machine
    (folder / "pyenv").write_text(f"#!/bin/sh\necho {folder}/pyenv_root\n")
    (folder / "pyenv").chmod(0o755)
    add("python3.13", works=False)
    add("python3.12")
    add("pyenv_root/versions/3.13.1t/bin/python")  # without a global lock, for which there are no wheels
    assert "\npython3.12 -m venv" in make()
    add("pyenv_root/versions/3.13.1/bin/python")
    assert f"\n{folder}/pyenv_root/versions/3.13.1/bin/python -m venv" in make()


def test_the_environment_of_another_python_is_made_anew(machine):
    folder, _, make = machine
    (folder / "venv").mkdir()
    (folder / "venv" / "pyvenv.cfg").touch()
    (folder / "venv" / "ready-cpu-3.9.9").touch()
    assert f"-m venv --clear {folder}/venv" in make()
    version = ".".join(map(str, sys.version_info[:3]))
    (folder / "venv" / f"ready-cpu-{version}").touch()
    assert "-m venv" not in make()


def test_the_guard_stores_counts_only_where_it_is_told_to(machine):
    _, _, make = machine
    assert "tests/guard/check.py \n" in make("bench-guard")
    assert "tests/guard/check.py --store\n" in make("bench-guard", "STORE=1")
