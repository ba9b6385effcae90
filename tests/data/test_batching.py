"""Batches are a pure function of (seed, step); an epoch holds every pair once."""

import numpy as np
import pytest

from attention_jax.data.batching import NO_ROW, TrainingBatches, in_order, make_buckets
from attention_jax.data.sentences import Sentences

RANDOM = np.random.default_rng(0)
LENGTHS = RANDOM.integers(1, 9, (103, 2))
SIDES = [Sentences.join([[5] * n for n in LENGTHS[:, side]]) for side in (0, 1)]
BUCKETS = make_buckets(*SIDES, (4, 8), batch_tokens=32)


def batches(steps_per_call=3):
    return TrainingBatches(BUCKETS, steps_per_call)


def epoch(order, seed, number):
    """(bucket, rows) of every step of an epoch, one step a call."""
    first = number * order.steps_per_epoch
    calls = [order.take(seed, step, step + 1) for step in range(first, first + order.steps_per_epoch)]
    return [(call.bucket, tuple(call.rows[0])) for call in calls]


def test_a_pair_is_in_the_first_bucket_that_holds_both_sides():
    for bucket, bounds in zip(BUCKETS, ((0, 4), (4, 8)), strict=True):
        longest = LENGTHS[bucket.pairs].max(1)
        assert ((bounds[0] < longest) & (longest <= bounds[1])).all()
    assert sorted(np.concatenate([b.pairs for b in BUCKETS])) == list(range(103))
    assert [b.batch_size for b in BUCKETS] == [8, 4]


def test_a_buckets_rows_are_its_pairs_padded():
    for bucket in BUCKETS:
        rows = bucket.rows(np.array([0, NO_ROW, len(bucket.pairs) - 1]))
        for side in (0, 1):
            found = rows[("source", "target")[side]]
            assert found.shape == (3, bucket.length)
            lengths = [LENGTHS[bucket.pairs[0], side], 0, LENGTHS[bucket.pairs[-1], side]]
            np.testing.assert_array_equal(found, 5 * (np.arange(bucket.length) < np.array(lengths)[:, None]))


@pytest.mark.parametrize("number", [0, 3])
def test_an_epoch_holds_every_pair_once_the_last_partial_batches_included(number):
    seen = [(bucket, row) for bucket, rows in epoch(batches(), 0, number) for row in rows if row != NO_ROW]
    assert sorted(seen) == [(b, row) for b in range(2) for row in range(len(BUCKETS[b].pairs))]


def test_the_same_step_gives_the_same_batch_however_it_is_reached():
    whole = epoch(batches(), seed=1, number=2)
    order, steps = batches(), batches().steps_per_epoch
    step, resumed = 2 * steps, []
    while step < 3 * steps:  # in calls that stop at odd steps
        call = order.take(1, step, step + 1 + step % 2)
        resumed += [(call.bucket, tuple(rows)) for rows in call.rows]
        step += len(call.rows)
    assert resumed == whole


def test_seeds_and_epochs_shuffle_and_seeds_share_the_shapes():
    first, second = (epoch(batches(), seed, 0) for seed in (0, 1))
    assert first != second
    assert [bucket for bucket, _ in first] == [bucket for bucket, _ in second]
    assert first != epoch(batches(), 0, 1)


@pytest.mark.parametrize(("step", "stop"), [(0, 1), (0, 4), (2, 7), (5, 100), (17, 18), (20, 43)])
def test_buckets_are_known_ahead_in_the_order_in_which_steps_first_read_them(step, stop):
    order = batches(2)
    read = [order.take(0, each, each + 1).bucket for each in range(step, stop)]
    assert order.ahead(step, stop) == list(dict.fromkeys(read))


def test_a_call_stays_within_its_bucket_its_limit_and_its_epoch():
    order = batches(4)
    step = 0
    while step < 3 * order.steps_per_epoch:
        call = order.take(0, step, step + 100)
        assert 1 <= len(call.rows) <= 4
        step += len(call.rows)
    assert step == 3 * order.steps_per_epoch


def test_evaluation_sees_every_pair_once_in_full_batches():
    seen = []
    for indices, batch in in_order(BUCKETS):
        assert len(batch["source"]) == len(batch["target"]) in (8, 4)
        for row, index in zip(batch["source"], indices, strict=False):
            assert (row != 0).sum() == LENGTHS[index, 0]
        seen += indices.tolist()
    assert sorted(seen) == list(range(103))
