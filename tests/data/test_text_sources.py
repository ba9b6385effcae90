"""Texts are read in blocks as they stand, and what cannot be read is named by file and line or byte."""

import pytest
from texts import BASE, write_folder, write_jsonl

from attention_jax.data import text_sources
from attention_jax.data.text_importing import load_text
from attention_jax.data.text_sources import files_of, read_file, read_jsonl, read_text
from attention_jax.data.tfds_splits import overlap
from attention_jax.errors import UserError

TEXT = "a é\n— 😀😀😀\r\n\n東京東京東京\n end without a line"


@pytest.mark.parametrize("block", [1, 2, 3, 5, 8, 1000])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_comes_back_from_its_blocks(tmp_path, monkeypatch, block, mark):
    monkeypatch.setattr(text_sources, "BLOCK", block)
    for text in (TEXT, TEXT + "\n", "x", "é" * 50):
        (tmp_path / "t.txt").write_bytes((mark + text).encode())
        chunks = [*read_file(tmp_path / "t.txt")]
        assert "".join(chunk.text for chunk in chunks) == text
        assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_the_byte_that_is_not_utf_8_is_named(tmp_path, monkeypatch, block):
    monkeypatch.setattr(text_sources, "BLOCK", block)
    path = tmp_path / "t.txt"
    for good, bad in (("é\nab", b"\xff\xe9"), ("\ufeffé" * 30, b"\xe6\x9d\n"), ("", b"\x80" * 9), ("x", b"\xf0\x9f")):
        path.write_bytes(good.encode() + bad)
        with pytest.raises(UserError, match=f"{path}: byte {len(good.encode())} is not UTF-8. Convert it"):
            [*read_file(path)]


def test_a_folder_is_its_text_files_in_order(tmp_path):
    write_folder(tmp_path / "many", ["a", "b", "c"])
    (tmp_path / "many" / "below").mkdir()
    (tmp_path / "many" / "below" / "z.txt").write_text("z")
    (tmp_path / "many" / "empty.txt").write_text("")
    (tmp_path / "many" / "figure.png").write_bytes(b"\x89PNG")
    config = BASE._replace(path=str(tmp_path / "many"))
    assert [path.name for path in files_of(config, "train")] == ["000.txt", "001.txt", "002.txt", "z.txt"]
    assert "".join(chunk.text for chunk in read_text(config, "train")) == "abcz"


def test_json_lines_are_documents_under_the_key_that_is_named(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"body": "a\\n\\u00e9", "id": 1}\n\n{"body": ""}\n  {"body": "b", "text": "c"}')
    assert [*read_jsonl(path, "body")] == [("a\né", True), ("b", True)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "b"', r"2: not JSON \(.*\)\. Each line must be an object, such as {\"text\": ...}"),
        (b"plain text", "2: not JSON"),
        (b'["a"]', "2: no text under 'text': it is not an object"),
        (b'{"body": "b", "id": 3}', "2: no text under 'text': its keys are body, id. Name the key"),
        (b'{"text": 7}', "2: no text under 'text': its keys are text"),
        (b'{"text": "\xff"}', "2: byte 11 of the line is not UTF-8"),
        (b'{"text": "\\ud83d"}', "2: half a character"),
    ],
)
def test_a_line_that_is_no_document_is_named(tmp_path, line, message):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + line + b'\n{"text": "c"}\n')
    with pytest.raises(UserError, match=f"{path}:{message}") as error:
        [*read_jsonl(path, "text")]
    assert "\n" not in str(error.value)


def test_what_is_not_there_or_empty_is_refused_by_name_and_nothing_is_left(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "spaces.jsonl").write_text("\n\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "short.txt").write_text("abc")
    write_jsonl(tmp_path / "two.jsonl", ["only", "two"])
    for source, name, changes, message in (
        ("text", "none.txt", {}, "none.txt: no such file. --config.data.path=FILE takes any text"),
        ("jsonl", "none.jsonl", {}, "none.jsonl: no such file. --config.data.path=FILE takes a document a line"),
        ("text", "empty.txt", {}, "empty.txt: the file is empty"),
        ("text", "folder", {}, r"folder: this folder has no \*\.txt, or only empty ones"),
        ("jsonl", "folder", {}, r"folder: this folder has no \*\.jsonl, or only empty ones"),
        (
            "text",
            "short.txt",
            {},
            "config.data.path: a text of 3 characters is too little for config.data.held_out=0.1. Give",
        ),
        (
            "jsonl",
            "two.jsonl",
            {"held_out_test": 0.1},
            "2 documents is too little for config.data.held_out=0.1 and config.data.held_out_test=0.1",
        ),
        ("jsonl", "spaces.jsonl", {}, "a text of 0 documents is too little"),
        (
            "jsonl",
            "two.jsonl",
            {"validation_path": str(tmp_path / "spaces.jsonl")},
            "config.data.path=.*: has no text for validation",
        ),
    ):
        config = BASE._replace(source=source, path=str(tmp_path / name), **changes)
        with pytest.raises(UserError, match=message) as error:
            load_text(tmp_path / "data", config)
        assert "\n" not in str(error.value)
        assert not [*tmp_path.glob("data*")]


def test_a_file_that_is_trained_on_is_not_held_out_too(tmp_path):
    write_folder(tmp_path / "many", ["a", "b", "c"])
    inside = BASE._replace(path=str(tmp_path / "many"), validation_path=str(tmp_path / "many" / "001.txt"))
    with pytest.raises(UserError, match=r"config.data.validation_path: .*001.txt is in the split train too"):
        load_text(tmp_path / "data", inside)
    twice = BASE._replace(source="tfds:lm1b", train_path="train", test_path="train")
    with pytest.raises(UserError, match="config.data.test_path='train': may share .* config.data.train_path='train'"):
        load_text(tmp_path / "data", twice)
    within = BASE._replace(source="tfds:lm1b", validation_path="train[:10%]")
    with pytest.raises(
        UserError, match=r"validation_path='train\[:10%\]': may share .* slices that do not meet"
    ) as error:
        load_text(tmp_path / "data", within)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("one", "other", "is_shared"),
    [
        ("train", "test", False),
        ("train", "train", True),
        ("train", "train[:10%]", True),
        ("train[10%:]", "train[:10%]", False),
        ("train[:-10%]", "train[90%:]", False),
        ("train[5%:20%]", "train[19%:]", True),
        ("train[:100]", "train[100:200]", False),
        ("train[:101]", "train[100:]", True),
        ("train[:-50]", "train[-50:]", False),
        ("train[:50]", "train[-50:]", True),  # a data set may have 60 examples
        ("train[:50]", "train[50%:]", True),
        ("train[10%:](pct1_dropremainder)", "train[:10%]", False),
        ("train[1shard:]", "train[:1shard]", False),
        ("train[10%:]+test", "validation+train[:10%]", False),
        ("train[10%:]+test", "test", True),
        ("all", "test", True),
    ],
)
def test_splits_of_tfds_are_apart_only_if_their_names_show_it(one, other, is_shared):
    assert overlap(one, other) == overlap(other, one) == is_shared
