"""Windows: every token is predicted, once where that is asked, from what stands before it."""

import numpy as np
import pytest

from attention_jax.data.text import Counts, TextSplit
from attention_jax.data.tokenizers import EOS, PAD
from attention_jax.data.windows import Windows, windows_at
from attention_jax.errors import UserError


def split_of(size):
    tokens = np.arange(4, 4 + size, dtype=np.uint16)  # each token tells its index
    return TextSplit(tokens, np.array([0, size]), Counts(1, size, size, 1, size, 0))


def check_each_follows_the_one_before(rows):
    is_first = rows.tokens == EOS
    there = rows.is_counted
    np.testing.assert_array_equal(rows.targets[there & ~is_first], rows.tokens[there & ~is_first] + 1)
    np.testing.assert_array_equal(rows.targets[there & is_first], 4)


@pytest.mark.parametrize("size", [1, 5, 8, 9, 16, 17, 100])
@pytest.mark.parametrize("stride", [1, 3, 8])
@pytest.mark.parametrize("batch", [1, 4])
def test_in_order_every_token_is_a_target_once_with_as_much_context_as_the_stride_allows(size, stride, batch):
    found = []
    windows = Windows(split_of(size).tokens, 8, batch)
    for rows in windows.in_order(stride):
        assert rows.tokens.shape == rows.targets.shape == rows.is_counted.shape == (batch, 8)
        check_each_follows_the_one_before(rows)
        found += rows.targets[rows.is_counted].tolist()
        _, column = np.nonzero(rows.is_counted)
        index = rows.targets[rows.is_counted] - 4
        assert (column >= np.minimum(index, 8 - stride)).all()
    assert found == list(range(4, 4 + size))


def test_windows_are_drawn_from_every_place_alike():
    rows = Windows.of(split_of(12), length=8, batch=100).rows(0, 0, 50)
    assert rows.tokens.shape == (50, 100, 8)
    assert rows.is_counted.all()
    check_each_follows_the_one_before(rows)
    counts = np.unique(rows.targets[..., 0], return_counts=True)[1]
    assert len(counts) == 5  # five starts, 1000 expected in each: standard deviation 28
    assert abs(counts - 1000).max() < 5 * 28


def test_a_step_is_the_same_whatever_came_before_and_other_seeds_draw_others():
    windows = Windows.of(split_of(1000), 8, 4)
    together = windows.rows(3, 10, 20)
    for step in (10, 13, 19):
        for one, all_steps in zip(windows.rows(3, step, step + 1)[:3], together[:3], strict=True):
            np.testing.assert_array_equal(one[0], all_steps[step - 10])
    assert (windows.drawn(4, 10, 20) != windows.drawn(3, 10, 20)).mean() > 0.9


def test_what_is_beyond_the_text_is_padding_that_does_not_count():
    rows = windows_at(split_of(3).tokens, np.array([1]), 4)
    np.testing.assert_array_equal(rows.tokens, [[4, 5, 6, PAD]])
    np.testing.assert_array_equal(rows.targets, [[5, 6, PAD, PAD]])
    np.testing.assert_array_equal(rows.is_counted, [[True, True, False, False]])


def test_a_text_shorter_than_a_window_and_a_stride_that_leaves_tokens_out_are_refused():
    with pytest.raises(UserError, match="config.data.length=8: the training text has only 7 tokens"):
        Windows.of(split_of(7), 8, 1)
    for stride in (0, 9):
        with pytest.raises(ValueError, match=f"stride={stride}: needs 1 to 8, the length of a window"):
            next(Windows.of(split_of(8), 8, 1).in_order(stride))
