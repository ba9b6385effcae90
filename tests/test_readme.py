"""What the README shows is true of the code."""

import functools
import os
import re
import runpy
import shutil
import subprocess
import sys

import pytest
from support import ROOT

from attention_jax.data.tokenizers import TOKENIZERS
from attention_jax.launcher.experiments import load
from attention_jax.launcher.modes import MODES
from attention_jax.sweeps import space
from configs import nmt

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))


def test_its_code_runs():
    sweep, library = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names = dict(vars(space))
    exec(sweep, names)
    assert names["sweep"]() == nmt.sweep()
    names = {}
    exec(library, names)
    assert names["values"].shape == (2, 5, 16)
    assert not names["weights"][1, :, 3:].any()


def test_its_pictures_and_configs_exist():
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", README)
    assert len(pictures) >= 2
    for path in [*pictures, *re.findall(r"--config=(configs/\w+\.py)", README)]:
        assert (ROOT / path).is_file(), path


def test_every_config_is_of_an_experiment():
    for path in (ROOT / "configs").glob("*.py"):
        assert load(runpy.run_path(str(path))["get_config"]().experiment).together


def test_every_model_corpus_tokenizer_and_mode_is_named():
    for name in (*nmt.MODELS, *nmt.CORPORA, *TOKENIZERS, *MODES):
        assert re.search(rf"\b{name}\b", README), name


PATHS = (".", "tests", "tests/backends")  # of the copy
MODELS_WITH_IT = """
import jax, oracle
from translators import INPUTS, LENGTHS, SOURCE, build

assert "diagonal" in oracle.SCORES
for name in ("bahdanau", "transformer_book"):
    model = build(name, score="diagonal")
    shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, LENGTHS, INPUTS)
    assert any("['w']" in jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes))
"""


def anchors(page):
    """What links may point to in a page: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_leads_somewhere(name):
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if not path.startswith("https://"):
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_its_new_score_is_a_change_of_three_files_that_passes_the_tests_of_scores(tmp_path):
    (change,) = re.findall(r"```diff\n(.*?)```", README, flags=re.DOTALL)
    assert len(re.findall(r"^\+\+\+ ", change, flags=re.MULTILINE)) == 3
    for name in ("attention_jax", "configs", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    subprocess.run(["git", "apply", "-"], input=change, text=True, cwd=tmp_path, check=True)
    tests = ("tests/ops/test_scoring.py", "-k", "diagonal", "-p", "no:cacheprovider")
    run = functools.partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, check=False)
    tested = run([sys.executable, "-m", "pytest", *tests])
    assert tested.returncode == 0, tested.stdout
    modelled = run([sys.executable, "-c", MODELS_WITH_IT], env=os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)})
    assert modelled.returncode == 0, modelled.stderr
