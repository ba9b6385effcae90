"""Reading files: both forms, and every complaint with its file and line."""

import pytest

from attention_jax.data.sources import BadLines, read_parallel, read_tsv
from attention_jax.errors import UserError


def read(path, on_bad_line="error"):
    bad_lines = BadLines(on_bad_line)
    return [(pair.source, pair.target) for pair in read_tsv(path, bad_lines)], bad_lines.first


@pytest.fixture
def tsv(tmp_path):
    path = tmp_path / "fra.txt"
    return lambda data: path.write_bytes(data) and path


def test_two_columns_and_attribution_give_the_same_pairs(tsv):
    expected = [("Go.", "Va !"), ("Hi.", "Salut.")]
    assert read(tsv(b"Go.\tVa !\nHi.\tSalut.\n"))[0] == expected
    assert read(tsv(b"Go.\tVa !\tCC-BY #1\r\nHi.\tSalut.\tCC-BY #2"))[0] == expected


def test_a_byte_order_mark_is_not_part_of_the_first_sentence(tsv):
    assert read(tsv("\ufeffGo.\tVa !\n".encode()))[0] == [("Go.", "Va !")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"Go.\tVa !\nHi.Salut.\n", r"fra.txt:2: no tab between source and target"),
        (b"Go.\tVa !\n\n", r"fra.txt:2: a blank line"),
        (b"Go.\t \n", r"fra.txt:1: an empty sentence"),
        (b"Go.\tVa !\nCaf\xe9.\tCaf\xe9.\n", r"fra.txt:2: not UTF-8 \(byte 4 of the line is 0xe9\)"),
    ],
)
def test_a_bad_line_is_named_or_skipped_and_counted(tsv, data, message):
    with pytest.raises(UserError, match=message + r".*Fix the line, or set --config.data.on_bad_line=skip"):
        read(tsv(data))
    pairs, skipped = read(tsv(data), "skip")
    assert len(pairs) == data.count(b"\n") - 1
    assert len(skipped) == 1


def test_missing_and_empty_files_say_how_to_get_one(tmp_path, tsv):
    with pytest.raises(UserError, match=r"absent.txt: no such file.*manythings.org.*--config.data.path"):
        read(tmp_path / "absent.txt")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match=r"empty.txt: the file is empty"):
        read(tmp_path / "empty.txt")


def test_parallel_files_are_read_line_by_line_and_must_be_parallel(tmp_path):
    (tmp_path / "train.de").write_text("Hallo.\nTschüss.\n", encoding="utf-8")
    (tmp_path / "train.en").write_text("Hello.\nBye.\n", encoding="utf-8")
    pairs = list(read_parallel(tmp_path / "train", ("de", "en"), BadLines("error")))
    assert [(p.source, p.target) for p in pairs] == [("Hallo.", "Hello."), ("Tschüss.", "Bye.")]
    (tmp_path / "train.en").write_text("Hello.\n\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train.en:2: an empty sentence"):
        list(read_parallel(tmp_path / "train", ("de", "en"), BadLines("error")))
    (tmp_path / "train.en").write_text("Hello.\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train.de has 2 lines and .*train.en 1: line n of one must translate line n"):
        list(read_parallel(tmp_path / "train", ("de", "en"), BadLines("error")))


def test_an_unknown_treatment_of_bad_lines_is_refused():
    with pytest.raises(UserError, match="config.data.on_bad_line='ignore': choose 'error' or 'skip'"):
        BadLines("ignore")
