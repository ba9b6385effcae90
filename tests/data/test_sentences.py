"""Sentences end to end, in memory and in files."""

import contextlib

import numpy as np
import pytest

from attention_jax.data.sentences import ArrayWriter, Sentences, SentenceWriter, open_array

LISTS = [[1, 2], [], [3], [2**16 - 1] * 5]


def written(folder, sentences, vocabulary):
    with contextlib.closing(SentenceWriter(folder, "s", vocabulary)) as writer:
        for sentence in sentences:
            writer.append(sentence)
    return Sentences.open(folder, "s")


def test_sentences_are_slices_of_one_array():
    joined = Sentences.join(LISTS)
    assert [list(joined[i]) for i in range(len(joined))] == LISTS
    assert list(joined.lengths) == [2, 0, 1, 5]


@pytest.mark.parametrize(("vocabulary", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32)])
def test_what_is_written_comes_back_in_no_more_bytes_than_the_vocabulary_needs(tmp_path, vocabulary, dtype):
    found = written(tmp_path, LISTS, vocabulary)
    assert found.tokens.dtype == dtype
    assert isinstance(found.tokens, np.memmap)
    assert [list(found[i]) for i in range(len(found))] == LISTS


def test_an_array_may_be_empty_and_may_outgrow_what_a_writer_holds(tmp_path):
    for count in (0, 3, 200_000):
        with contextlib.closing(ArrayWriter(tmp_path / "a.npy", np.int64)) as writer:
            writer.extend(range(count // 2))
            writer.extend(range(count // 2, count))
        np.testing.assert_array_equal(open_array(tmp_path / "a.npy"), np.arange(count))


def test_rows_are_padded_and_a_missing_one_is_padding():
    rows = Sentences.join([[1, 2], [3], [4, 5, 6]]).rows(np.array([2, -1, 1]), 4)
    np.testing.assert_array_equal(rows, [[4, 5, 6, 0], [0, 0, 0, 0], [3, 0, 0, 0]])
