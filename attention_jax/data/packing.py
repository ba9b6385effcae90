"""Documents in a row: as many as fit, one after another, told apart by segments and with positions of their own.

Rows are stretches of the stream of documents, which each begin with one; a document that is longer than a row has rows
of its own, and others may follow its end. So a row is known by where it begins, and no token is left out or read twice.
"""

import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from attention_jax.data.permutation import permuted
from attention_jax.data.text import TextSplit
from attention_jax.data.tokenizers import EOS, PAD
from attention_jax.data.windows import Rows, filled, windows_at

DOCUMENTS_AT_ONCE = 2**16


class Packed(NamedTuple):
    """Batches of `batch` rows of whole documents; those of a step are a pure function of (seed, step)."""

    tokens: Int[np.ndarray, " size"]
    edges: Int[np.ndarray, " rows+1"]  # where each row begins, and the end of the last
    length: int
    batch: int

    @classmethod
    def of(cls, split: TextSplit, length: int, batch: int) -> "Packed":
        """Rows of at most `length` tokens of a split's documents, in their order."""
        return cls(split.tokens, _edges(split.documents, length), length, batch)

    @property
    def steps_per_epoch(self) -> int:
        """Steps that read every row."""
        return -(-(len(self.edges) - 1) // self.batch)

    def rows(self, seed: int, step: int, stop: int) -> Rows:
        """The rows of the steps from `step` to before `stop`, `[steps, batch, length]`: each once before any again."""
        count = len(self.edges) - 1
        epochs, places = np.divmod(np.arange(step * self.batch, stop * self.batch), count)
        for epoch in np.unique(epochs):
            places[epochs == epoch] = permuted(places[epochs == epoch], count, (seed, int(epoch)))
        return self._at(places.reshape(stop - step, self.batch))

    def in_order(self) -> Iterator[Rows]:
        """Every row once, in batches that are filled up with padding."""
        for first in range(0, len(self.edges) - 1, self.batch):
            places = np.arange(first, min(first + self.batch, len(self.edges) - 1))
            yield filled(self._at(places), self.batch)

    def _at(self, places: Int[np.ndarray, "*rows"]) -> Rows:
        starts, ends = self.edges[places], self.edges[places + 1]
        rows = windows_at(self.tokens, starts, self.length)
        place = np.arange(self.length)
        is_there = place < (ends - starts)[..., None]
        begins = (rows.tokens == EOS) | (place == 0)
        segments = np.where(is_there, np.cumsum(begins, axis=-1), 0)
        positions = np.where(is_there, place - np.maximum.accumulate(np.where(begins, place, 0), axis=-1), 0)
        tokens, targets = (np.where(is_there, part, PAD) for part in rows[:2])
        return Rows(tokens, targets, is_there, segments.astype(np.int32), positions.astype(np.int32))


def _edges(documents: np.ndarray, length: int) -> Int[np.ndarray, " rows+1"]:
    """A row ends before the first document that does not fit, or when it is full of one that fits into none."""
    edges = array.array("q", [0])
    before = 0  # where the document begins
    for first in range(1, len(documents), DOCUMENTS_AT_ONCE):
        for end in documents[first : first + DOCUMENTS_AT_ONCE].tolist():
            if end - edges[-1] > length and before > edges[-1]:
                edges.append(before)
            while end - edges[-1] > length:
                edges.append(edges[-1] + length)
            before = end
    edges.append(before)
    return np.frombuffer(edges, np.int64)
