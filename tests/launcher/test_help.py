"""What --help says, however the launcher is started."""

import subprocess
import sys

import pytest
from support import ROOT

from attention_jax.launcher.flags import FLAGS, OWN
from attention_jax.launcher.modes import MODES
from attention_jax.runs import provenance


@pytest.mark.parametrize(
    ("start", "program"),
    [(["launch.py"], "python launch.py"), (["-m", "attention_jax.launcher"], "python -m attention_jax.launcher")],
)
def test_help_names_how_it_was_started_every_flag_and_every_mode(start, program):
    process = subprocess.run([sys.executable, *start, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"  {program} --config=configs/kernel_regression.py\n" in process.stdout
    assert f"  printf 'ROMEO:\\n' | {program} --workdir=" in process.stdout  # what a shell is to read
    for name in (*(f"--{flag.name}" for flag in OWN), *MODES):
        assert f"\n  {name} " in process.stdout
    assert max(len(line) for line in process.stdout.splitlines() if program not in line) <= 120
    assert not process.stderr


def test_every_flag_of_ours_is_told():
    ours = {flag.name for flag in FLAGS.flags_by_module_dict()["attention_jax.launcher.flags"]}
    assert ours == {flag.name for flag in OWN}


@pytest.mark.parametrize(
    ("started", "written"),
    [
        ("/somewhere/launch.py", "python launch.py"),
        ("/lib/attention_jax/launcher/__main__.py", "python -m attention_jax.launcher"),
        ("/bin/attention-jax", "attention-jax"),
    ],
)
def test_the_command_that_is_kept_can_be_given_again(monkeypatch, started, written):
    monkeypatch.setattr(sys, "argv", [started, "--config=c.py", "--input=a b"])
    assert provenance.program() == written
    assert provenance.provenance.__wrapped__()["command"] == f"{written} --config=c.py '--input=a b'"


def test_an_installed_copy_is_of_no_commit_though_it_lies_in_a_repository(monkeypatch):
    monkeypatch.setattr(provenance, "ROOT", ROOT / "attention_jax")
    assert provenance.provenance.__wrapped__()["code"] == {"commit": "", "changed": None}


def test_help_stops_where_its_reader_does():
    command = ["bash", "-o", "pipefail", "-c", f"{sys.executable} launch.py --help | head -n 0"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
