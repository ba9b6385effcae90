"""What the tutorial shows is what its code does."""

import contextlib
import io
import re
import shlex
import subprocess
import sys

import jax
import pytest
from support import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"```(python|sh)\n(.*?)```\n(?:\n```text\n(.*?)```)?", flags=re.DOTALL)


def run_command(text, folder):
    program, script, *arguments = shlex.split(text)
    assert program == "python"
    subprocess.run([sys.executable, ROOT / script, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.slow
def test_its_code_runs_and_prints_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    with jax.numpy_rank_promotion("allow"):  # as in a reader's Python
        for kind, text, shown in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            if kind == "sh":
                run_command(text, tmp_path)
                continue
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(text, PAGE.name, "exec"), names)
            assert printed.getvalue() == shown, text
