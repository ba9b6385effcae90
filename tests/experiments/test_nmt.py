"""Translation's corpora as data sets of TFDS."""

from pathlib import Path

from attention_jax.data.config import DataConfig
from attention_jax.data.importing import load_or_import
from configs.nmt import get_config
from experiments import nmt


def test_a_prepared_corpus_is_opened_by_the_flags_that_are_printed_and_says_what_it_skipped(tmp_path, capsys):
    lines = "".join(f"word{i} here .\tmot{i} ici .\n" for i in range(60))
    (tmp_path / "pairs.txt").write_text(f"no tab\n{lines}", encoding="utf-8")
    config = get_config("bahdanau,tsv")
    config.data.update(path=str(tmp_path / "pairs.txt"), on_bad_line="skip", validation=5, test=0, min_count=1)
    printed = nmt.prepare(config, tmp_path / "tfds" / "pairs")
    assert "skipped 1 bad lines, first" in capsys.readouterr().err
    assert printed.split(" ")[:2] == ["--config.data.source=tfds:pairs", f"--config.data.path={tmp_path / 'tfds'}"]
    assert printed.endswith("--config.data.test_path= --config.data.test=0")
    there = get_config("bahdanau,tfds")
    there.data.update(source="tfds:pairs", path=str(tmp_path / "tfds"), languages=("en", "fr"), test_path="", test=0)
    there.data.update(tokenizer="words", min_count=1)
    assert load_or_import(Path(tmp_path / "data"), DataConfig(**there.data)).meta["pairs"] == {
        "train": 55,
        "validation": 5,
    }
