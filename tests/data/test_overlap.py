"""Files of their own beside a split that is drawn: no sentence is in two splits, and the draw is as large as asked."""

import hashlib
import random

import pytest

from attention_jax.data.config import DataConfig
from attention_jax.data.corpus import read_texts
from attention_jax.data.importing import load_or_import
from attention_jax.errors import UserError
from configs.nmt import CORPORA

SENTENCES = [f"a{i} b ." for i in range(300)]
OTHER = {"validation": "test", "test": "validation"}
BY_SOURCE, IN_ORDER = {"split": "by_source"}, {"split": "in_order", "train": 100}


def write(path, sentences):
    path.write_text("".join(f"{sentence}\tx {sentence}\n" for sentence in sentences), encoding="utf-8")
    return str(path)


def imported(folder, **changes):
    """What an import of `SENTENCES` found, and each split's sentences."""
    path = write(folder / "all.txt", SENTENCES)
    asked = {"path": path, "validation": 50, "test": 50, "min_count": 1, **changes}
    meta = load_or_import(folder / "data", DataConfig(**CORPORA["tsv"])._replace(**asked)).meta
    return meta, {name: [pair.source.lower() for pair in read_texts(folder / "data", name)] for name in meta["pairs"]}


@pytest.mark.parametrize("given", OTHER)
@pytest.mark.parametrize("how", [BY_SOURCE, IN_ORDER])
def test_a_drawn_split_has_no_sentence_of_a_given_file_and_as_many_as_asked_for(tmp_path, given, how):
    own = random.Random(0).sample(SENTENCES, 120)
    path = write(tmp_path / "own.txt", map(str.upper, own))
    meta, splits = imported(tmp_path, **how, **{f"{given}_path": path})
    assert splits[given] == own
    assert len(set(splits[OTHER[given]])) == 50
    assert len({sentence for found in splits.values() for sentence in found}) == sum(map(len, splits.values()))
    free = [sentence for sentence in SENTENCES if sentence not in own and sentence not in splits[OTHER[given]]]
    assert splits["train"] == free[: how.get("train", len(free))]
    passed = SENTENCES[: SENTENCES.index(splits["train"][-1])] if "train" in how else SENTENCES
    assert meta["left_out"] == len(set(passed) & set(own))


def test_in_order_goes_on_to_the_next_sentences_that_are_free(tmp_path):
    path = write(tmp_path / "own.txt", SENTENCES[100:140])
    assert imported(tmp_path, **IN_ORDER, validation_path=path)[1]["test"] == SENTENCES[140:190]


@pytest.mark.parametrize("how", [BY_SOURCE, IN_ORDER])
def test_a_file_that_cannot_spare_as_many_beside_a_given_one_is_refused(tmp_path, how):
    path = write(tmp_path / "own.txt", SENTENCES[:260])
    with pytest.raises(UserError, match=r"outside the held-out file are too few for config.data.*Lower one"):
        imported(tmp_path, **how, validation_path=path)


def by_hash(sentences):
    return sorted(sentences, key=lambda text: hashlib.blake2b(text.encode(), digest_size=8, key=b"0").hexdigest())


@pytest.mark.parametrize("train", [0, 80])
def test_without_given_files_the_smallest_hashes_are_held_out_and_the_next_trained_on(tmp_path, train):
    order = by_hash(SENTENCES)
    expected = {"validation": order[:50], "test": order[50:100], "train": order[100 : 100 + (train or 300)]}
    found = imported(tmp_path, train=train)[1]
    assert {name: set(sentences) for name, sentences in found.items()} == {k: set(v) for k, v in expected.items()}


def test_in_order_without_given_files_the_first_are_trained_on_and_the_next_held_out(tmp_path):
    expected = {"train": SENTENCES[:100], "validation": SENTENCES[100:150], "test": SENTENCES[150:200]}
    assert imported(tmp_path, **IN_ORDER)[1] == expected


def test_with_both_files_given_the_training_sentences_are_drawn_first_and_then_left_out(tmp_path):
    own = [write(tmp_path / f"{first}.txt", SENTENCES[first : first + 20]) for first in (0, 20)]
    meta, splits = imported(tmp_path, train=80, validation_path=own[0], test_path=own[1])
    drawn = set(by_hash(SENTENCES)[:80])
    assert set(splits["train"]) == drawn - set(SENTENCES[:40])
    assert meta["left_out"] == len(drawn & set(SENTENCES[:40])) > 0


def test_given_files_that_repeat_sentences_are_kept_whole_and_counted(tmp_path):
    validation = write(tmp_path / "validation.txt", ["p", "q", "P", "p"])
    test = write(tmp_path / "test.txt", ["r", "q", "Q", "s"])
    meta, splits = imported(tmp_path, validation_path=validation, test_path=test)
    assert splits["validation"] == ["p", "q", "p", "p"]
    assert splits["test"] == ["r", "q", "q", "s"]
    assert meta["repeated"] == {"validation": 2, "test": 1}
    assert meta["in_both"] == 2
