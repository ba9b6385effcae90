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
    """Sentence pairs that are padded to one length: their indices in the corpus, and how many make a batch."""

    pairs: Int[np.ndarray, " rows"]
    source: Sentences
    target: Sentences
    length: int
    batch_size: int

    def rows(self, index: Int[np.ndarray, "*rows"]) -> dict[str, Int[np.ndarray, "*rows length"]]:
        """The bucket's pairs at these indices, padded; `NO_ROW` gives a row of padding."""
        pairs = np.where(index >= 0, self.pairs[np.maximum(index, 0)], NO_ROW).ravel()
        found = {side: getattr(self, side).rows(pairs, self.length) for side in ("source", "target")}
        return {side: rows.reshape(*index.shape, self.length) for side, rows in found.items()}

    @property
    def num_batches(self) -> int:
        return -(-len(self.pairs) // self.batch_size)


class Steps(NamedTuple):
    """Consecutive training steps over one bucket: each one's rows of the bucket, with `NO_ROW` for padding."""

    bucket: int
    rows: Int[np.ndarray, "steps batch"]


def split_buckets(split: Split, batch_tokens: int) -> list[Bucket]:
    """The buckets of an imported split; a batch has `batch_tokens` // length rows."""
    return [
        Bucket(pairs, split.source, split.target, length, max(batch_tokens // length, 1))
        for length, pairs in split.buckets.items()
        if len(pairs)
    ]


def make_buckets(source: Sentences, target: Sentences, boundaries: Sequence[int], batch_tokens: int) -> list[Bucket]:
    """Buckets of sentences that were not imported: each pair is in the first bucket that holds both sides."""
    home = np.searchsorted(np.asarray(boundaries), np.maximum(source.lengths, target.lengths))
    pairs = {length: np.flatnonzero(home == index) for index, length in enumerate(boundaries)}
    return split_buckets(Split(source, target, pairs, []), batch_tokens)


def in_order(buckets: Sequence[Bucket]) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Every pair once, for evaluation: each batch's indices in the corpus, and its rows, padded to full batches.

    The batch's "index" has the same indices, with `NO_ROW` for padding.
    """
    for bucket in buckets:
        for first in range(0, len(bucket.pairs), bucket.batch_size):
            index = np.arange(first, first + bucket.batch_size)
            is_pair = index < len(bucket.pairs)
            pairs = np.where(is_pair, bucket.pairs[np.where(is_pair, index, 0)], NO_ROW)
            yield pairs[is_pair], bucket.rows(np.where(is_pair, index, NO_ROW)) | {"index": pairs}


class _Epoch(NamedTuple):
    """An epoch's calls in their order, each as (bucket, first batch, batches), and the steps done after each."""

    number: int
    calls: Int[np.ndarray, "calls 3"]
    ends: Int[np.ndarray, " calls"]


class TrainingBatches:
    """The batches of training: every pair once an epoch, `steps_per_call` batches of one bucket in a row.

    The order of buckets depends on the epoch alone, so that runs of different seeds have the same shapes at the same
    step. The rows of a batch depend on the seed and the epoch. There is no list of all pairs, because the shuffle is a
    keyed permutation; only the order of the latest epoch is kept.
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
        self._epoch = self._ordered(0)

    def take(self, seed: int, step: int, stop: int) -> Steps:
        """The batches of one call from `step` on, at most to `stop` or the end of the epoch."""
        number, step_of_epoch = divmod(step, self.steps_per_epoch)
        if self._epoch.number != number:
            self._epoch = self._ordered(number)
        index = np.searchsorted(self._epoch.ends, step_of_epoch, side="right")
        bucket, first, count = self._epoch.calls[index].tolist()
        done = step_of_epoch - int(self._epoch.ends[index] - count)
        return Steps(bucket, self._rows(seed, number, bucket, first + done, min(count - done, stop - step)))

    def ahead(self, step: int, stop: int) -> list[int]:
        """The buckets that the steps from `step` to `stop` read, in the order in which each is first read."""
        found: dict[int, None] = {}
        for number in range(step // self.steps_per_epoch, -(-stop // self.steps_per_epoch)):
            epoch, start = self._ordered(number), number * self.steps_per_epoch
            ends = start + epoch.ends
            is_read = (ends > step) & (ends - epoch.calls[:, 2] < stop)
            found |= dict.fromkeys(epoch.calls[is_read, 0].tolist())
            if len(found) == len(self._buckets):
                break
        return list(found)

    def _ordered(self, epoch: int) -> _Epoch:
        calls = self._calls[permuted(np.arange(len(self._calls)), len(self._calls), (epoch,))]
        return _Epoch(epoch, calls, np.cumsum(calls[:, 2]))

    def _rows(self, seed: int, epoch: int, index: int, first: int, count: int) -> np.ndarray:
        """The rows of consecutive batches of a bucket's shuffled pairs."""
        bucket = self._buckets[index]
        size = len(bucket.pairs)
        order = np.arange(first * bucket.batch_size, (first + count) * bucket.batch_size)
        rows = np.where(order < size, permuted(np.minimum(order, size - 1), size, (seed, epoch, index)), NO_ROW)
        return rows.reshape(count, bucket.batch_size).astype(np.int32 if size < 2**31 else np.int64)
