"""A text in its splits: every character in one of them, tokenized as it was, counted, and told from others."""

import itertools
import json
import shutil

import numpy as np
import pytest
from support import DATA
from texts import BASE, DOCUMENTS, decoded, write_folder, write_jsonl

from attention_jax.data.digests import digest_of
from attention_jax.data.text_importing import identify_text, load_text, read_split, require_usable
from attention_jax.data.text_sources import EMBEDDED_SENTENCES, read_text
from attention_jax.data.text_tokenizers import TEXT_TOKENIZERS
from attention_jax.data.tokenizers import EOS, SPECIALS, UNK
from attention_jax.errors import UserError


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """The same documents as one file, a folder and JSON lines."""
    folder = tmp_path_factory.mktemp("there")
    (folder / "one.txt").write_bytes("".join(DOCUMENTS).encode())
    write_folder(folder / "many", DOCUMENTS)
    write_jsonl(folder / "lines.jsonl", DOCUMENTS)
    return folder


def config(there, name, **changes):
    source = "jsonl" if name.endswith("jsonl") else "text"
    return BASE._replace(source=source, path=str(there / name), **changes)


@pytest.mark.parametrize("tokenizer", TEXT_TOKENIZERS)
@pytest.mark.parametrize(("held_out", "held_out_test"), [(0.1, 0.0), (0.25, 0.2)])
def test_of_one_text_the_last_shares_are_held_out(there, tmp_path, tokenizer, held_out, held_out_test):
    changes = {"tokenizer": tokenizer, "held_out": held_out, "held_out_test": held_out_test}
    text = load_text(tmp_path / "data", config(there, "one.txt", **changes))
    whole = "".join(DOCUMENTS)
    found = {name: "".join(decoded(text, name)) for name in text.splits}
    assert "".join(found.values()) == whole
    assert [*found] == ["train", "validation", *(["test"] if held_out_test else [])]
    assert len(found["train"]) == round(len(whole) * (1 - held_out - held_out_test))
    assert len(found["train"] + found["validation"]) == round(len(whole) * (1 - held_out_test))
    assert not text.has_ends
    assert not any(EOS in split.tokens for split in text.splits.values())


@pytest.mark.parametrize("tokenizer", TEXT_TOKENIZERS)
@pytest.mark.parametrize("name", ["many", "lines.jsonl"])
def test_documents_are_whole_in_one_split_each_and_end(there, tmp_path, name, tokenizer):
    text = load_text(tmp_path / "data", config(there, name, tokenizer=tokenizer, held_out=0.2, held_out_test=0.1))
    found = {name: decoded(text, name) for name in text.splits}
    assert sorted(itertools.chain(*found.values())) == sorted(DOCUMENTS)
    assert [len(found[name]) for name in ("train", "validation", "test")] == [42, 12, 6]
    for documents in found.values():
        indices = [DOCUMENTS.index(document) for document in documents]
        assert indices == sorted(indices)
    assert text.has_ends
    for split in text.splits.values():
        np.testing.assert_array_equal(np.flatnonzero(split.tokens == EOS), split.documents[1:] - 1)


def test_files_folders_and_json_lines_of_the_same_documents_are_the_same_text_and_the_seed_draws(there, tmp_path):
    one, other = (load_text(tmp_path / name, config(there, name)) for name in ("many", "lines.jsonl"))
    assert one.fingerprint == other.fingerprint
    drawn = load_text(tmp_path / "drawn", config(there, "many", seed=1))
    assert decoded(drawn, "validation") != decoded(one, "validation")


def test_what_is_held_out_may_have_files_of_its_own(there, tmp_path):
    write_folder(tmp_path / "more", ["the end of ☃", "word"])
    (tmp_path / "last.txt").write_text("done")
    changes = {"validation_path": str(tmp_path / "more"), "test_path": str(tmp_path / "last.txt")}
    text = load_text(tmp_path / "data", config(there, "many", **changes))
    assert decoded(text, "train") == DOCUMENTS
    assert decoded(text, "validation") == ["the end of \ufffd", "word"]  # characters are those trained on
    assert decoded(text, "test") == ["done"]
    assert text.splits["validation"].counts.unknown == 1
    in_folder = BASE._replace(path=str(tmp_path), train_path="more", validation_path="last.txt")
    assert decoded(load_text(tmp_path / "other", in_folder), "train") == ["the end of ☃", "word"]


@pytest.mark.parametrize("tokenizer", TEXT_TOKENIZERS)
@pytest.mark.parametrize("name", ["one.txt", "many", "lines.jsonl"])
def test_counts_are_those_of_a_loop(there, tmp_path, monkeypatch, name, tokenizer):
    monkeypatch.setattr("attention_jax.data.text_sources.BLOCK", 7)  # words and characters lie across blocks
    monkeypatch.setattr("attention_jax.data.text_importing.ENCODED_AT_ONCE", 50)
    text = load_text(tmp_path / "data", config(there, name, tokenizer=tokenizer, held_out=0.2))
    kept = json.loads((tmp_path / "data" / "meta.json").read_text())["splits"]
    for split, part in text.splits.items():
        documents = decoded(text, split)
        assert part.counts._asdict() == kept[split]
        assert part.counts.documents == len(documents) == len(part.documents) - 1
        assert part.counts.bytes == sum(len(document.encode()) for document in documents)
        assert part.counts.characters == sum(map(len, documents))
        assert part.counts.words == sum(len(document.split()) for document in documents)
        assert part.counts.tokens == len(part.tokens) == part.documents[-1]
        assert part.counts.unknown == 0


@pytest.mark.parametrize("tokenizer", TEXT_TOKENIZERS)
def test_how_much_is_read_at_once_changes_nothing(there, tmp_path, monkeypatch, tokenizer):
    whole = load_text(tmp_path / "whole", config(there, "one.txt", tokenizer=tokenizer))
    monkeypatch.setattr("attention_jax.data.text_sources.BLOCK", 64)  # more than the longest line
    monkeypatch.setattr("attention_jax.data.text_importing.ENCODED_AT_ONCE", 100)
    monkeypatch.setattr("attention_jax.data.text_splits.DRAWN_AT_ONCE", 5)
    if tokenizer in ("characters", "bytes"):
        assert (
            load_text(tmp_path / "blocks", config(there, "one.txt", tokenizer=tokenizer)).fingerprint
            == whole.fingerprint
        )
    one, other = (config(there, name, tokenizer=tokenizer) for name in ("many", "lines.jsonl"))
    assert decoded(load_text(tmp_path / "one", one), "train") == decoded(load_text(tmp_path / "other", other), "train")


def test_tokens_take_the_smallest_type_that_holds_the_vocabulary(tmp_path):
    for count, dtype in ((252, np.uint8), (253, np.uint16), (70_000, np.uint32)):
        characters = [chr(code) for code in range(0x1000, 0x1000 + count + 2048) if not 0xD800 <= code < 0xE000]
        (tmp_path / f"{count}.txt").write_bytes("".join(characters[:count] * 2).encode())
        text = load_text(tmp_path / str(count), BASE._replace(path=str(tmp_path / f"{count}.txt"), held_out=0.5))
        assert text.splits["train"].tokens.dtype == dtype
        assert text.vocabulary == count + 4
        np.testing.assert_array_equal(text.splits["train"].tokens, np.arange(4, count + 4))


def test_without_a_path_it_is_generated_sentences(tmp_path):
    text = load_text(tmp_path / "data", BASE)
    (train,), (validation,) = decoded(text, "train"), decoded(text, "validation")
    assert (train + validation).count("\n") == EMBEDDED_SENTENCES - 1
    assert train + validation == next(read_text(BASE, "train")).text


def test_shakespeare_is_split_and_numbered_as_published(tmp_path):
    path = DATA / "shakespeare" / "input.txt"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    whole = path.read_text(encoding="utf-8")
    text = load_text(tmp_path / "data", BASE._replace(path=str(path)))
    cut = int(0.9 * len(whole) + 0.5)
    numbers = {character: index + len(SPECIALS) for index, character in enumerate(sorted(set(whole[:cut])))}
    for name, part in (("train", whole[:cut]), ("validation", whole[cut:])):
        np.testing.assert_array_equal(text.splits[name].tokens, [numbers.get(one, UNK) for one in part])
    assert text.vocabulary == 69


def test_another_text_is_tokenized_as_the_first_to_be_measured(there, tmp_path):
    first = load_text(tmp_path / "first", config(there, "many", tokenizer="bpe"))
    (tmp_path / "new.txt").write_text("New document ☃\n" * 20)
    new = BASE._replace(path=str(tmp_path / "new.txt"), tokenizer="bpe")
    (tmp_path / "measured").mkdir()
    split = read_split(tmp_path / "measured", new, first)
    assert first.tokenizer.decode(split.tokens) == "New document ☃\n" * 20
    assert split.tokens[-1] == EOS  # as the first's documents end
    assert split.counts.words == 60


def test_an_import_that_takes_more_than_a_moment_tells_how_far_it_is(there, tmp_path, monkeypatch, capsys):
    load_text(tmp_path / "short", config(there, "one.txt"))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("attention_jax.data.text_importing.PATIENCE", 0)
    load_text(tmp_path / "long", config(there, "one.txt"))
    shown = capsys.readouterr()
    assert "text read" in shown.err
    assert "text tokenized" in shown.err
    assert shown.out == ""


def test_a_text_is_told_by_its_files(there, tmp_path):
    assert identify_text(BASE) == "embedded"
    assert identify_text(BASE._replace(source="tfds:lm1b")) == "tfds:lm1b"
    assert identify_text(config(there, "one.txt")) == digest_of(there / "one.txt")
    shutil.copytree(there / "many", tmp_path / "many")
    before = identify_text(config(tmp_path, "many"))
    assert before == identify_text(config(there, "many"))
    (tmp_path / "many" / "007.txt").write_text("changed")
    assert identify_text(config(tmp_path, "many")) != before


def test_a_text_that_moves_from_one_file_to_the_next_makes_them_another_text(tmp_path):
    """What was trained on is then held out, though the files together say what they said."""
    asked = BASE._replace(source="text", path=str(tmp_path), train_path="a.txt", validation_path="b.txt")
    found = []
    for cut in (4, 8):
        for name, part in (("a.txt", "one two three"[:cut]), ("b.txt", "one two three"[cut:])):
            (tmp_path / name).write_text(part)
        found.append(identify_text(asked))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": "words"}, "config.data.tokenizer='words': choose one of characters, bytes, unigram, bpe"),
        ({"source": "csv"}, "config.data.source='csv': choose one of text, jsonl, tfds"),
        ({"source": "tfds"}, "config.data.source='tfds': only tfds takes a name: tfds:lm1b"),
        ({"source": "text:a"}, "config.data.source='text:a': only tfds takes a name"),
        ({"source": "jsonl"}, "config.data.path is not set"),
        ({"validation_path": "v.txt"}, "config.data.validation_path='v.txt': requires config.data.path"),
        ({"held_out": 0.0}, "config.data.held_out=0.0: needs more than 0 and less than 1"),
        ({"held_out": 1.0}, "config.data.held_out=1.0: needs more than 0 and less than 1"),
        ({"held_out_test": -0.1}, "config.data.held_out_test=-0.1: needs 0 or more"),
        ({"held_out_test": 0.9}, "config.data.held_out_test=0.9: .*less than 1 together with config.data.held_out=0.1"),
    ],
)
def test_what_no_text_can_be_read_with_is_refused_by_its_key(changes, message):
    with pytest.raises(UserError, match=message) as error:
        require_usable(BASE._replace(**changes))
    assert "\n" not in str(error.value)
