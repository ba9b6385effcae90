"""Length buckets, and batches that are a pure function of (seed, step)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from attention_jax.data.corpus import Split
from attention_jax.data.permutation import permuted
from attention_jax.data.sentences import Sentences

NO_ROW = -1


class Bucket(NamedTuple):
    """Sentence pairs that are padded to one length: their places in the corpus, and how many make a batch."""

    places: Int[np.ndarray, " rows"]
    source: Sentences
    target: Sentences
    length: int
    batch_size: int

    def rows(self, index: Int[np.ndarray, " rows"]) -> dict[str, Int[np.ndarray, "rows length"]]:
        """Some of its pairs, padded; `NO_ROW` gives a row of padding."""
        places = np.where(index >= 0, self.places[np.maximum(index, 0)], NO_ROW)
        return {side: getattr(self, side).rows(places, self.length) for side in ("source", "target")}

    @property
    def num_batches(self) -> int:
        return -(-len(self.places) // self.batch_size)


class Call(NamedTuple):
    """Consecutive steps over one bucket: the rows of each, `NO_ROW` where a batch is not full."""

    bucket: int
    rows: Int[np.ndarray, "steps batch"]


def split_buckets(split: Split, batch_tokens: int) -> list[Bucket]:
    """The buckets of an imported split; a batch has `batch_tokens` // length rows."""
    return [
        Bucket(places, split.source, split.target, length, max(batch_tokens // length, 1))
        for length, places in split.buckets.items()
        if len(places)
    ]


def make_buckets(source: Sentences, target: Sentences, boundaries: Sequence[int], batch_tokens: int) -> list[Bucket]:
    """Each pair in the first bucket that holds both sides, for sentences that were not imported."""
    home = np.searchsorted(np.asarray(boundaries), np.maximum(source.lengths, target.lengths))
    places = {length: np.flatnonzero(home == index) for index, length in enumerate(boundaries)}
    return split_buckets(Split(source, target, places, []), batch_tokens)


def gather_on_host(
    bucket: Bucket, rows: Int[np.ndarray, "steps batch"], steps: int
) -> tuple[dict[str, np.ndarray], Int[np.ndarray, "steps batch"]]:
    """A table of just the rows of `steps` steps (missing ones are padding), and their places in it."""
    every = np.full((steps, rows.shape[1]), NO_ROW, np.int64)
    every[: len(rows)] = rows
    places = np.arange(every.size, dtype=np.int32).reshape(every.shape)
    return bucket.rows(every.ravel()), places[: len(rows)]


def in_order(buckets: Sequence[Bucket]) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Every batch once, for evaluation: places in the corpus, and rows filled up with padding to full batches.

    A batch's "place" is its rows' places again, `NO_ROW` of padding.
    """
    for bucket in buckets:
        for first in range(0, len(bucket.places), bucket.batch_size):
            index = np.arange(first, first + bucket.batch_size)
            is_there = index < len(bucket.places)
            places = np.where(is_there, bucket.places[np.where(is_there, index, 0)], NO_ROW)
            yield places[is_there], bucket.rows(np.where(is_there, index, NO_ROW)) | {"place": places}


class _Plan(NamedTuple):
    """An epoch's calls in their order: bucket, first batch and how many of each; and the steps done after each."""

    epoch: int
    calls: Int[np.ndarray, "calls 3"]
    ends: Int[np.ndarray, " calls"]


class Batches:
    """The order of training: every pair once an epoch, in batches of one bucket, `steps_per_call` in a row.

    Which bucket comes when depends on the epoch alone, so that runs of different seeds meet the same
    shapes at the same step; which rows a batch holds depends on the seed and the epoch. Nothing is remembered but
    the plan of the last epoch asked for, and no list of all pairs is made: the shuffle is a keyed permutation.
    """

    def __init__(self, buckets: Sequence[Bucket], steps_per_call: int):
        self._buckets = buckets
        self._calls = np.array(
            [
                (index, first, min(steps_per_call, bucket.num_batches - first))
                for index, bucket in enumerate(buckets)
                for first in range(0, bucket.num_batches, steps_per_call)
            ]
        )
        self.steps_per_epoch = int(self._calls[:, 2].sum())
        self._planned = self._plan(0)

    def call(self, seed: int, step: int, stop: int) -> Call:
        """The batches of `step` and of those that follow in one call, not beyond `stop` or the epoch."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._planned.epoch != epoch:
            self._planned = self._plan(epoch)
        place = np.searchsorted(self._planned.ends, position, side="right")
        bucket, first, count = self._planned.calls[place].tolist()
        done = position - int(self._planned.ends[place] - count)
        return Call(bucket, self._batches(seed, epoch, bucket, first + done, min(count - done, stop - step)))

    def _plan(self, epoch: int) -> "_Plan":
        calls = self._calls[permuted(np.arange(len(self._calls)), len(self._calls), (epoch,))]
        return _Plan(epoch, calls, np.cumsum(calls[:, 2]))

    def _batches(self, seed: int, epoch: int, index: int, first: int, count: int) -> np.ndarray:
        """Some consecutive batches of a bucket's shuffled pairs."""
        bucket = self._buckets[index]
        size = len(bucket.places)
        order = np.arange(first * bucket.batch_size, (first + count) * bucket.batch_size)
        rows = np.where(order < size, permuted(np.minimum(order, size - 1), size, (seed, epoch, index)), NO_ROW)
        return rows.reshape(count, bucket.batch_size).astype(np.int32 if size < 2**31 else np.int64)
