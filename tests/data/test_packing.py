"""Packed rows hold every document whole, once, apart from its neighbours."""

import itertools

import numpy as np
import pytest

from attention_jax.data.packing import Packed
from attention_jax.data.text import Counts, TextSplit
from attention_jax.data.tokenizers import EOS

LENGTH = 16


def documents_of(seed, longest=12, count=200):
    draw = np.random.default_rng(seed)
    return [[*draw.integers(4, 60, size).tolist(), EOS] for size in draw.integers(1, longest, count)]


def split_of(documents):
    offsets = np.cumsum([0, *map(len, documents)])
    tokens = np.array([*itertools.chain.from_iterable(documents)], np.uint8)
    return TextSplit(tokens, offsets, Counts(len(documents), 0, 0, 0, len(tokens), 0))


def texts_in(rows):
    """What each segment of each row reads and is to predict, found by a loop."""
    for row in range(len(rows.tokens)):
        for segment in range(1, rows.segments[row].max() + 1):
            here = rows.segments[row] == segment
            assert rows.is_counted[row][here].all()
            np.testing.assert_array_equal(rows.positions[row][here], np.arange(here.sum()))
            yield rows.tokens[row][here].tolist(), rows.targets[row][here].tolist()
        padding = rows.segments[row] == 0
        assert not rows.is_counted[row][padding].any()
        assert not rows.tokens[row][padding].any()
        assert not rows.targets[row][padding].any()


@pytest.mark.parametrize("batch", [1, 7])
def test_every_document_is_there_once_and_whole_and_is_read_from_an_end(batch):
    documents = documents_of(0)
    found = []
    for rows in Packed.of(split_of(documents), LENGTH, batch).in_order():
        assert rows.tokens.shape == rows.segments.shape == (batch, LENGTH)
        for read, predicted in texts_in(rows):
            assert read == [EOS, *predicted[:-1]]
            found.append(predicted)
    assert found == documents


def test_only_a_document_longer_than_a_row_is_cut_and_begins_a_row():
    documents = [[4] * 5 + [EOS], [5] * 39 + [EOS], [6] * 3 + [EOS], [7] * 15 + [EOS], [8] * 16 + [EOS]]
    rows = next(Packed.of(split_of(documents), LENGTH, 9).in_order())
    found = [predicted for _, predicted in texts_in(rows)]
    assert found == [documents[0], [5] * 16, [5] * 16, [5] * 7 + [EOS], documents[2], documents[3], [8] * 16, [EOS]]
    np.testing.assert_array_equal(rows.tokens[2], [5] * 16)  # what is cut goes on from the token before
    assert rows.segments[3].max() == 2


def test_no_row_could_have_held_the_next_document_too():
    documents = documents_of(1)
    packed = Packed.of(split_of(documents), LENGTH, 1)
    offsets = split_of(documents).documents
    for start, end in itertools.pairwise(packed.edges[:-1]):
        after = offsets[np.searchsorted(offsets, end, side="right")]
        assert end - start <= LENGTH < after - start


def steps_of_an_epoch(packed):
    return -(-(len(packed.edges) - 1) // packed.batch)


def test_every_row_comes_once_an_epoch_in_an_order_that_seed_and_epoch_decide():
    packed = Packed.of(split_of(documents_of(2)), LENGTH, 4)
    count = len(packed.edges) - 1
    rows = packed.rows(0, 0, 2 * steps_of_an_epoch(packed) + 1)
    keys = [*map(bytes, rows.targets.reshape(-1, LENGTH))]
    whole = sorted(
        bytes(row) for batch in Packed.of(split_of(documents_of(2)), LENGTH, 1).in_order() for row in batch.targets
    )
    assert sorted(keys[:count]) == sorted(keys[count : 2 * count]) == whole
    assert keys[:count] != keys[count : 2 * count]
    other = packed.rows(1, 0, steps_of_an_epoch(packed)).targets
    assert (other != rows.targets[: steps_of_an_epoch(packed)]).any()


def test_a_step_is_the_same_whatever_came_before():
    packed = Packed.of(split_of(documents_of(3)), LENGTH, 4)
    first, last = steps_of_an_epoch(packed) - 3, steps_of_an_epoch(packed) + 3
    together = packed.rows(5, first, last)
    for step in range(first, last):
        for one, every in zip(packed.rows(5, step, step + 1), together, strict=True):
            np.testing.assert_array_equal(one[0], every[step - first])


def test_one_running_text_is_cut_into_full_rows():
    tokens = np.arange(4, 54, dtype=np.uint8)
    packed = Packed.of(TextSplit(tokens, np.array([0, 50]), Counts(1, 0, 0, 0, 50, 0)), LENGTH, 4)
    rows = next(packed.in_order())
    np.testing.assert_array_equal(rows.targets[rows.is_counted], tokens)
    assert rows.segments.max() == 1
