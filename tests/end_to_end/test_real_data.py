"""Real corpora, where they lie beside the checkout."""

import json

import pytest

from attention_jax.data.config import DataConfig
from attention_jax.data.importing import load_or_import
from attention_jax.data.sources import BadLines, read_tsv
from attention_jax.data.splits import sentence_key
from configs.nmt import CORPORA


def test_the_whole_tatoeba_file_is_imported_without_a_bad_line_or_a_straddling_sentence(shared_data, tmp_path):
    data = DataConfig(**CORPORA["tatoeba"])._replace(path=str(shared_data / "tatoeba" / "fra.txt"))
    corpus = load_or_import(tmp_path / "data", data)
    assert sum(corpus.meta["pairs"].values()) == 74_037
    assert corpus.meta["bad_lines"] == corpus.meta["too_long"]["pairs"] == 0
    keys = [{" ".join(r.source.lower().split()) for r in split.references} for split in corpus.splits.values()]
    assert not keys[0] & keys[1] | keys[0] & keys[2] | keys[1] & keys[2]
    assert [len(corpus.splits[name].references) for name in ("validation", "test")] == [1000, 1000]
    assert max(len(r.targets) for r in corpus.splits["validation"].references) > 1


def test_the_form_with_attribution_is_read_like_the_older_one(shared_data):
    pairs = list(read_tsv(shared_data / "tatoeba" / "fra-with-attribution.txt", BadLines("error")))
    assert len(pairs) == 1000
    assert pairs[0][:2] == ("Go.", "Va !")
    assert not any("CC-BY" in pair.target for pair in pairs)


def test_the_textbooks_split_validates_on_sentences_not_among_the_first_600_pairs(shared_data, tmp_path):
    data = DataConfig(**CORPORA["tatoeba_600"])._replace(path=str(shared_data / "tatoeba" / "fra.txt"))
    corpus = load_or_import(tmp_path / "data", data)
    assert corpus.meta["pairs"] == {"train": 600, "validation": 200}
    pairs = list(read_tsv(shared_data / "tatoeba" / "fra.txt", BadLines("error")))
    trained = {sentence_key(pair) for pair in pairs[:600]}
    fresh = [pair for pair in pairs[600:] if sentence_key(pair) not in trained][:200]
    held_out = [corpus.source.decode(corpus.splits["validation"].source[i]) for i in range(200)]
    assert held_out == [corpus.source.decode(corpus.source.encode(pair.source)) for pair in fresh]


def test_parallel_files_with_splits_of_their_own(shared_data, tmp_path):
    folder = shared_data / "multi30k"
    paths = {"path": folder / "train", "validation_path": folder / "val", "test_path": folder / "test_2016_flickr"}
    data = DataConfig(**CORPORA["parallel"])._replace(languages=("de", "en"), **{k: str(v) for k, v in paths.items()})
    meta = load_or_import(tmp_path / "data", data).meta
    assert meta["pairs"]["validation"] == 1014
    assert meta["pairs"]["test"] == 1000
    assert 28_900 < meta["pairs"]["train"] <= 29_000  # captions that are also held out are left out


@pytest.mark.slow
def test_the_textbooks_recipe_reaches_its_training_loss_and_translates_its_sentences(shared_data, launcher, tmp_path):
    path = shared_data / "tatoeba" / "fra.txt"
    process = launcher.train_long(tmp_path / "w", config="configs/nmt.py:bahdanau,tatoeba_600", data__path=path)
    assert process.returncode == 0, process.err
    result = json.loads((tmp_path / "w" / "result.json").read_text())
    assert result["train"]["loss"] < 0.23
    assert result["book"]["mean"] >= 0.9
    assert {"go .", "i lost .", "i'm home ."} < set(result["book"])
