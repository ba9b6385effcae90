"""What the README shows is true of the code."""

import re

from support import ROOT

from attention_jax.data.tokenizers import TOKENIZERS
from attention_jax.launcher.experiments import load
from attention_jax.launcher.modes import MODES
from attention_jax.sweeps import space
from configs import nmt

README = (ROOT / "README.md").read_text(encoding="utf-8")


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
        assert load(path.stem).together


def test_every_model_corpus_tokenizer_and_mode_is_named():
    for name in (*nmt.MODELS, *nmt.CORPORA, *TOKENIZERS, *MODES):
        assert re.search(rf"\b{name}\b", README), name
