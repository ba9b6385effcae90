"""Data sets of TFDS: prepared from files, read back, mocked, and refused by name; all without TensorFlow."""

import contextlib
import itertools
import socket
import sys

import pytest
from support import DATA
from texts import BASE, decoded

from attention_jax.data.config import DataConfig
from attention_jax.data.importing import export_to_tfds, load_or_import
from attention_jax.data.sources import BadLines, read_tsv
from attention_jax.data.text_importing import load_text
from attention_jax.data.tfds import read_tfds, read_tfds_text
from attention_jax.errors import UserError
from configs.nmt import CORPORA

LANGUAGES = ("en", "fr")


def tsv_config(path):
    return DataConfig(**CORPORA["tsv"])._replace(path=str(path), validation=20, test=10, min_count=1)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A data set of TFDS made of the first lines of a real file, where it is at hand, and that file."""
    folder = tmp_path_factory.mktemp("prepared")
    file = DATA / "tatoeba" / "fra.txt"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)[:400] if file.exists() else MADE_UP
    (folder / "pairs.txt").write_text("".join(lines), encoding="utf-8")
    export_to_tfds(folder / "tfds" / "pairs", tsv_config(folder / "pairs.txt"))
    return folder


MADE_UP = [f"word{i} here .\tmot{i} ici .\n" for i in range(400)]


def pairs(folder, split="train", name="pairs", languages=LANGUAGES):
    found = read_tfds(name, str(folder / "tfds"), split, languages, BadLines("error"))
    return [(pair.source, pair.target) for pair in found]


def test_a_prepared_file_comes_back_whole_in_its_splits_and_in_order(prepared):
    there = [(pair.source, pair.target) for pair in read_tsv(prepared / "pairs.txt", BadLines("error"))]
    splits = {split: pairs(prepared, split) for split in ("train", "validation", "test")}
    assert sorted(itertools.chain(*splits.values())) == sorted(there)
    for found in splits.values():
        indices = [there.index(pair) for pair in found]
        assert indices == sorted(indices)
    assert "tensorflow" not in sys.modules


def test_training_on_it_is_training_on_the_file(prepared, tmp_path):
    tfds = DataConfig(**CORPORA["tfds"])._replace(source="tfds:pairs", path=str(prepared / "tfds"), languages=LANGUAGES)
    same = {"tokenizer": "words", "min_count": 1, "max_length": 16, "buckets": (16,)}
    one = load_or_import(tmp_path / "tfds", tfds._replace(**same))
    other = load_or_import(tmp_path / "file", tsv_config(prepared / "pairs.txt")._replace(**same))
    assert one.meta["fingerprint"] == other.meta["fingerprint"]


def test_a_part_of_a_split_is_named_as_tfds_does(prepared):
    assert pairs(prepared, "train[:7]") == pairs(prepared)[:7]


@contextlib.contextmanager
def mocked(count):
    """The mocks of TFDS, whose reading of many examples at once misses an argument."""
    import tensorflow_datasets as tfds

    with tfds.testing.mock_data(num_examples=count), pytest.MonkeyPatch.context() as patch:
        many = lambda self, indices: [self[index] for index in indices]  # noqa: E731
        patch.setattr(tfds.core.data_sources.array_record.ArrayRecordDataSource, "__getitems__", many)
        yield


def test_the_mocks_of_tfds_are_read(tmp_path):
    with mocked(5):
        found = list(read_tfds("ted_hrlr_translate/pt_to_en", str(tmp_path), "train", ("pt", "en"), BadLines("skip")))
    assert len(found) == 5
    assert all(pair.source and pair.target for pair in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "pears"}, "tfds:pears: no such data set. The nearest are pairs"),
        ({"name": "wmt14/de-en"}, "tfds:wmt14/de-en: no such data set. The nearest are wmt14_translate."),
        ({"name": "xyzzy"}, "tfds:xyzzy: no such data set. The nearest are pairs, bucc, flores"),
        ({"name": "wmt14_translate/de-eu"}, "tfds:wmt14_translate/de-eu: no such data set.* wmt14_translate/de-en"),
        ({"split": "dev"}, "config.data: tfds:pairs has no split 'dev', but train, validation, test. Name one"),
        ({"languages": ("en", "de")}, r"config.data.languages=\('en', 'de'\): tfds:pairs has en, fr"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(prepared, change, message):
    with pytest.raises(UserError, match=message):
        pairs(prepared, **change)


def test_without_a_network_it_says_at_once_what_to_download_and_where_to(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(UserError, match=rf"no network.*Download http.*gz into {tmp_path}/tfds/downloads/manual"):
        pairs(tmp_path, name="ted_hrlr_translate/pt_to_en", languages=("pt", "en"))
    with pytest.raises(
        UserError, match=r"no network.*europarl-v7\.tgz, .*commoncrawl\.tgz, .*nc-v9\.tgz, .*dev\.tgz into"
    ):
        pairs(tmp_path, name="wmt14_translate/de-en", languages=("de", "en"))


def test_what_cannot_be_prepared_says_why_and_what_to_do(tmp_path):
    manual = tmp_path / "tfds" / "downloads" / "manual"
    manual.mkdir(parents=True)
    (manual / "qi18naacl-dataset.tar.gz").write_bytes(b"cut short")
    with pytest.raises(
        UserError, match=r"could not be prepared \(.*\)\. Copy a prepared ted_hrlr_translate/pt_to_en into"
    ):
        pairs(tmp_path, name="ted_hrlr_translate/pt_to_en", languages=("pt", "en"))


@pytest.mark.parametrize("name", ["Pairs", "a-b"])
def test_a_name_that_tfds_cannot_use_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="cannot name a data set"):
        export_to_tfds(tmp_path / name, tsv_config(tmp_path / "pairs.txt"))
    assert not list(tmp_path.iterdir())


def texts(folder, name="pairs", split="train", key="en"):
    return list(read_tfds_text(name, str(folder / "tfds"), split, key))


def test_the_texts_of_a_data_set_are_what_its_examples_have_under_a_key(prepared):
    assert texts(prepared) == [source for source, _ in pairs(prepared)]
    assert texts(prepared, "pairs", "train[:7]", "fr") == [target for _, target in pairs(prepared)][:7]
    assert "tensorflow" not in sys.modules


def test_a_text_of_tfds_has_its_splits_or_shares_held_out(prepared, tmp_path):
    config = BASE._replace(source="tfds:pairs", path=str(prepared / "tfds"), key="en", tokenizer="bytes")
    given = load_text(tmp_path / "given", config._replace(validation_path="validation", test_path="test"))
    assert {name: decoded(given, name) for name in given.splits} == {
        name: texts(prepared, split=name) for name in ("train", "validation", "test")
    }
    drawn = load_text(tmp_path / "drawn", config)
    documents = texts(prepared)
    assert sorted(decoded(drawn, "train") + decoded(drawn, "validation")) == sorted(documents)
    assert len(decoded(drawn, "validation")) == round(0.1 * len(documents))


def test_the_mock_of_lm1b_is_a_text(tmp_path):
    config = BASE._replace(source="tfds:lm1b", path=str(tmp_path), validation_path="test", tokenizer="characters")
    with mocked(20):
        text = load_text(tmp_path / "data", config)
    assert text.splits["train"].counts.documents == text.splits["validation"].counts.documents == 20
    assert all(decoded(text, "train"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "lm2b"}, "config.data.source=tfds:lm2b: no such data set. The nearest are lm1b"),
        ({"key": "text"}, "config.data.key='text': tfds:pairs has text in en, fr"),
        ({"name": "imdb_reviews", "key": "label"}, "config.data.key='label': tfds:imdb_reviews has text in text"),
        ({"name": "mnist", "key": "label"}, "config.data.key='label': tfds:mnist has no text, but image, label"),
        ({"split": "dev"}, "config.data: tfds:pairs has no split 'dev', but train, validation, test. Name one"),
    ],
)
def test_a_data_set_without_the_text_that_is_asked_for_is_refused(prepared, change, message):
    with pytest.raises(UserError, match=message):
        texts(prepared, **change)
