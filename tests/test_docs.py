"""The page of the API that `make docs` makes."""

import importlib
import re
import shlex
import subprocess
import sys

import pytest
from support import ROOT

pytest.importorskip("pdoc", reason="pdoc is of the locks: make docs")


@pytest.fixture(scope="module")
def arguments():
    """Of `make docs`: the modules, then the options."""
    (command,) = re.findall(
        r"\$\(BIN\)/python -W error::UserWarning -m pdoc (.*)", (ROOT / "Makefile").read_text(encoding="utf-8")
    )
    return shlex.split(command)


def test_every_module_has_a_page(arguments):
    from pdoc.extract import walk_specs

    pages = walk_specs([argument for argument in arguments if "attention_jax" in argument])
    for path in (ROOT / "attention_jax").rglob("*.py"):
        if not path.stem.startswith("_"):
            assert ".".join(path.relative_to(ROOT).with_suffix("").parts) in pages


def test_a_formula_is_on_the_page_of_its_module(arguments, tmp_path):
    modules = [argument.replace("attention_jax", "attention_jax.ops") for argument in arguments[:1]]
    options = [str(tmp_path) if argument == "docs/api" else argument for argument in arguments[2:]]
    command = [sys.executable, "-W", "error::UserWarning", "-m", "pdoc", *modules, *options]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not process.stderr
    scoring = importlib.import_module("attention_jax.ops.scoring")
    page = (tmp_path / "attention_jax" / "ops" / "scoring.html").read_text(encoding="utf-8")
    formula = scoring.scaled_dot.__doc__.partition(" (")[0]
    assert formula in page
