"""The page of the API that `make docs` makes."""

import importlib
import re
import shlex
import subprocess
import sys

import pytest
from support import ROOT

pytest.importorskip("pdoc", reason="pdoc is of the locks: make docs")


def test_every_room_and_formula_is_on_the_page_of_its_module(tmp_path):
    (command,) = re.findall(r"\$\(BIN\)/python (-m pdoc .*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    arguments = shlex.split(command.replace("docs/api", str(tmp_path)))
    process = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not process.stderr
    for path in (ROOT / "attention_jax").rglob("*.py"):
        module = path.relative_to(ROOT).with_suffix("")
        if not path.stem.startswith("_"):
            assert (tmp_path / module.with_suffix(".html")).is_file(), module
    scoring = importlib.import_module("attention_jax.ops.scoring")
    page = (tmp_path / "attention_jax" / "ops" / "scoring.html").read_text(encoding="utf-8")
    formula = scoring.scaled_dot.__doc__.partition(" (")[0]
    assert formula in page
