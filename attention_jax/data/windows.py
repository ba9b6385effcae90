"""Windows of a stream of tokens: drawn anywhere to train on, side by side to evaluate.

Every token is a target, and what stands before a stream's first token is `EOS`, as before any document.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from attention_jax.data.text import TextSplit
from attention_jax.data.tokenizers import EOS, PAD
from attention_jax.errors import UserError


class Rows(NamedTuple):
    """What a language model reads and is to predict: `targets[..., i]` follows `tokens[..., i]`.

    Where rows are packed documents, `segments` counts them from 1 (0: padding) and `positions` those of each document
    from 0; both are None where a row is one text.
    """

    tokens: Int[np.ndarray, "*rows length"]
    targets: Int[np.ndarray, "*rows length"]
    is_counted: Bool[np.ndarray, "*rows length"]  # a target that is predicted here
    segments: Int[np.ndarray, "*rows length"] | None = None
    positions: Int[np.ndarray, "*rows length"] | None = None


class Windows(NamedTuple):
    """Batches of `batch` windows of `length` tokens; those of a step are a pure function of (seed, step)."""

    tokens: Int[np.ndarray, " size"]
    length: int
    batch: int

    @classmethod
    def of(cls, split: TextSplit, length: int, batch: int) -> "Windows":
        """Raises UserError where the split is shorter than a window."""
        if (size := len(split.tokens)) < length:
            raise UserError(
                f"config.data.length={length:,}: the text has {size:,} tokens to draw windows from. "
                "Lower it, or give a longer text."
            )
        return cls(split.tokens, length, batch)

    @property
    def steps_per_epoch(self) -> int:
        """Steps that read as many tokens as there are."""
        return -(-len(self.tokens) // (self.length * self.batch))

    def starts(self, seed: int, step: int, stop: int) -> Int[np.ndarray, "steps batch"]:
        """Where the windows of the steps from `step` to before `stop` have their first target, each place as likely."""
        places = len(self.tokens) - self.length + 1
        drawn = [np.random.default_rng((seed, one)).integers(places, size=self.batch) for one in range(step, stop)]
        return np.stack(drawn)

    def rows(self, seed: int, step: int, stop: int) -> Rows:
        """The windows of the steps from `step` to before `stop`, `[steps, batch, length]`."""
        return windows_at(self.tokens, self.starts(seed, step, stop), self.length)

    def in_order(self, stride: int) -> Iterator[Rows]:
        """Every token of the stream as a target once, in batches that are filled up with rows that count nothing.

        A window begins `stride` after the one before and counts what that did not have: all but a stream's first
        `length` tokens are predicted with `length` − `stride` before them or more. Raises UserError for a stride that
        leaves tokens out.
        """
        if not 1 <= stride <= self.length:
            raise UserError(f"a stride of {stride}: needs 1 or more, and config.data.length={self.length} at most.")
        starts, fresh = _side_by_side(len(self.tokens), self.length, stride)
        for first in range(0, len(starts), self.batch):
            some = slice(first, first + self.batch)
            rows = windows_at(self.tokens, starts[some], self.length)
            is_fresh = np.arange(self.length) >= fresh[some, None]
            yield filled(rows._replace(is_counted=rows.is_counted & is_fresh), self.batch)


def windows_at(tokens: np.ndarray, starts: Int[np.ndarray, "*rows"], length: int) -> Rows:
    """The windows whose first targets are at `starts`; what is beyond the stream is padding that does not count."""
    place = np.asarray(starts)[..., None] + np.arange(-1, length)
    is_there = place < len(tokens)
    found = np.where(is_there, tokens[np.clip(place, 0, len(tokens) - 1)], PAD).astype(np.int32)
    found[place < 0] = EOS
    return Rows(found[..., :-1], found[..., 1:], is_there[..., 1:])


def filled(rows: Rows, batch: int) -> Rows:
    """Rows with more of padding, up to `batch`."""
    missing = batch - len(rows.tokens)
    return Rows._make(None if part is None else np.pad(part, ((0, missing), (0, 0))) for part in rows)


def _side_by_side(size: int, length: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Where windows begin, the last as late as it can, and how many first targets of each were counted before."""
    last = max(size - length, 0)
    starts = np.minimum(np.arange(0, last + stride, stride), last)
    return starts, np.concatenate([[0], starts[:-1] + length - starts[1:]])
