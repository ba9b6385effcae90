"""Packed rows: as many documents in a row as fit, told apart by segments, each with positions of its own.

The documents lie end to end, and a row is a stretch of them that begins with a document. A document longer than a row
begins rows of its own; other documents may follow its end. A row is given by its start alone, and every token is in one
row.
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
    """Batches of `batch` rows of whole documents; a step's batch is a pure function of (seed, step)."""

    tokens: Int[np.ndarray, " size"]
    edges: Int[np.ndarray, " rows+1"]  # each row's start, and the end of the last
    length: int
    batch: int

    @classmethod
    def of(cls, split: TextSplit, length: int, batch: int) -> "Packed":
        """The split's documents, in their order, in rows of at most `length` tokens."""
        return cls(split.tokens, _edges(split.documents, length), length, batch)

    def drawn(self, seed: int, step: int, stop: int) -> Int[np.ndarray, "steps batch"]:
        """The numbers of the rows of the steps from `step` to before `stop`; an epoch has each row once."""
        count = len(self.edges) - 1
        epochs, indices = np.divmod(np.arange(step * self.batch, stop * self.batch), count)
        for epoch in np.unique(epochs):
            indices[epochs == epoch] = permuted(indices[epochs == epoch], count, (seed, int(epoch)))
        return indices.reshape(stop - step, self.batch)

    def rows(self, seed: int, step: int, stop: int) -> Rows:
        """The rows of the steps from `step` to before `stop`, `[steps, batch, length]`."""
        return self.at(self.drawn(seed, step, stop))

    def in_order(self) -> Iterator[Rows]:
        """Every row once, in batches that are filled up with padding."""
        for first in range(0, len(self.edges) - 1, self.batch):
            indices = np.arange(first, min(first + self.batch, len(self.edges) - 1))
            yield filled(self.at(indices), self.batch)

    def at(self, indices: Int[np.ndarray, "*rows"]) -> Rows:
        """The rows of these numbers."""
        starts, ends = self.edges[indices], self.edges[indices + 1]
        rows = windows_at(self.tokens, starts, self.length)
        column = np.arange(self.length)
        is_token = column < (ends - starts)[..., None]
        begins = (rows.tokens == EOS) | (column == 0)
        segments = np.where(is_token, np.cumsum(begins, axis=-1), 0)
        positions = np.where(is_token, column - np.maximum.accumulate(np.where(begins, column, 0), axis=-1), 0)
        tokens, targets = (np.where(is_token, part, PAD) for part in rows[:2])
        return Rows(tokens, targets, is_token, segments.astype(np.int32), positions.astype(np.int32))


def _edges(documents: np.ndarray, length: int) -> Int[np.ndarray, " rows+1"]:
    """A row ends before the first document that does not fit, or, in a document longer than a row, when it is full."""
    edges = array.array("q", [0])
    before = 0  # the document's start
    for first in range(1, len(documents), DOCUMENTS_AT_ONCE):
        for end in documents[first : first + DOCUMENTS_AT_ONCE].tolist():
            if end - edges[-1] > length and before > edges[-1]:
                edges.append(before)
            while end - edges[-1] > length:
                edges.append(edges[-1] + length)
            before = end
    edges.append(before)
    return np.frombuffer(edges, np.int64)
