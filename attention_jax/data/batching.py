"""Length buckets, and batches that are a pure function of (seed, step)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from attention_jax.data.corpus import Sentences
from attention_jax.data.tokenizers import PAD

NO_ROW = -1


class Bucket(NamedTuple):
    """Sentence pairs padded to one length, their places in the corpus, and how many make a batch."""

    places: Int[np.ndarray, " rows"]
    source: Int[np.ndarray, "rows length"]
    target: Int[np.ndarray, "rows length"]
    batch_size: int

    @property
    def table(self) -> dict[str, np.ndarray]:
        """The columns that a training step gathers its batch from."""
        return {"source": self.source, "target": self.target}

    @property
    def num_batches(self) -> int:
        return -(-len(self.source) // self.batch_size)


class Call(NamedTuple):
    """Consecutive steps over one bucket: the rows of each, `NO_ROW` where a batch is not full."""

    bucket: int
    rows: Int[np.ndarray, "steps batch"]


def make_buckets(source: Sentences, target: Sentences, boundaries: Sequence[int], batch_tokens: int) -> list[Bucket]:
    """Each pair in the first bucket that holds both sides; a batch has `batch_tokens` // length rows."""
    longest = np.maximum(source.lengths, target.lengths)
    home = np.searchsorted(np.asarray(boundaries), longest)
    buckets = []
    for index, length in enumerate(boundaries):
        members = np.flatnonzero(home == index)
        if len(members):
            rows = [pad([sentences[int(i)] for i in members], length) for sentences in (source, target)]
            buckets.append(Bucket(members, rows[0], rows[1], max(batch_tokens // length, 1)))
    return buckets


def pad(sentences: Sequence[Sequence[int] | np.ndarray], length: int) -> Int[np.ndarray, "rows length"]:
    """Sentences as rows, padded at the end."""
    rows = np.full((len(sentences), length), PAD, np.int32)
    for row, sentence in zip(rows, sentences, strict=True):
        row[: len(sentence)] = sentence
    return rows


def gather_on_host(
    bucket: Bucket, rows: Int[np.ndarray, "steps batch"], steps: int
) -> tuple[dict[str, np.ndarray], Int[np.ndarray, "steps batch"]]:
    """A table of just the rows of `steps` steps (missing ones are padding), and their places in it."""
    every = np.full((steps, rows.shape[1]), NO_ROW, np.int32)
    every[: len(rows)] = rows
    places = np.arange(every.size, dtype=np.int32).reshape(every.shape)
    table = {name: column[np.maximum(every.ravel(), 0)] for name, column in bucket.table.items()}
    return table, np.where(every == NO_ROW, NO_ROW, places)[: len(rows)]


def in_order(buckets: Sequence[Bucket]) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Every batch once, for evaluation: places in the corpus, and rows filled up with padding to full batches."""
    for bucket in buckets:
        for first in range(0, len(bucket.places), bucket.batch_size):
            part = slice(first, first + bucket.batch_size)
            missing = ((0, bucket.batch_size - len(bucket.places[part])), (0, 0))
            yield (
                bucket.places[part],
                {"source": np.pad(bucket.source[part], missing), "target": np.pad(bucket.target[part], missing)},
            )


class Batches:
    """The order of training: every pair once an epoch, in batches of one bucket, `steps_per_call` in a row.

    Which bucket comes when depends on the epoch alone, so that runs of different seeds meet the same
    shapes at the same step; which rows a batch holds depends on the seed and the epoch.
    """

    def __init__(self, buckets: Sequence[Bucket], steps_per_call: int):
        self._buckets = buckets
        self._steps_per_call = steps_per_call
        self.steps_per_epoch = sum(bucket.num_batches for bucket in buckets)
        self._cached: dict[tuple, np.ndarray] = {}

    def call(self, seed: int, step: int, stop: int) -> Call:
        """The batches of `step` and of those that follow in one call, not beyond `stop` or the epoch."""
        epoch, position = divmod(step, self.steps_per_epoch)
        for bucket, first, count in self._plan(epoch):
            if position < count:
                last = min(first + count, first + position + stop - step)
                return Call(bucket, self._batches(seed, epoch, bucket)[first + position : last])
            position -= count
        raise AssertionError("the plan of an epoch covers every step")

    def _plan(self, epoch: int) -> list[tuple[int, int, int]]:
        """(bucket, first batch, number of batches) of every call of an epoch."""
        size = self._steps_per_call
        calls = [
            (index, first, min(size, bucket.num_batches - first))
            for index, bucket in enumerate(self._buckets)
            for first in range(0, bucket.num_batches, size)
        ]
        return [calls[i] for i in np.random.default_rng((epoch,)).permutation(len(calls))]

    def _batches(self, seed: int, epoch: int, index: int) -> np.ndarray:
        key = (seed, epoch, index)
        if key not in self._cached:
            stale = [old for old in self._cached if old[0] == seed and old[1] != epoch]
            for old in stale:
                del self._cached[old]
            self._cached[key] = _shuffled(self._buckets[index], np.random.default_rng(key))
        return self._cached[key]


def _shuffled(bucket: Bucket, random: np.random.Generator) -> np.ndarray:
    rows = np.full(bucket.num_batches * bucket.batch_size, NO_ROW, np.int32)
    rows[: len(bucket.source)] = random.permutation(len(bucket.source))
    return rows.reshape(-1, bucket.batch_size)
