"""Windows of a text's tokens: drawn anywhere for training, side by side for evaluation.

Every token is a target. The text's first token is predicted from `EOS`, as any document's is.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from attention_jax.data.text import TextSplit
from attention_jax.data.tokenizers import EOS, PAD
from attention_jax.errors import UserError


class Rows(NamedTuple):
    """Rows of a language model: it reads `tokens[..., i]` and predicts `targets[..., i]`, the token after it.

    In packed rows `segments` counts documents from 1 (0: padding), and `positions` each document's tokens from 0. Both
    are None if a row is one text.
    """

    tokens: Int[np.ndarray, "*rows length"]
    targets: Int[np.ndarray, "*rows length"]
    is_counted: Bool[np.ndarray, "*rows length"]  # targets that count: no padding, and not counted in another row
    segments: Int[np.ndarray, "*rows length"] | None = None
    positions: Int[np.ndarray, "*rows length"] | None = None


class Windows(NamedTuple):
    """Batches of `batch` windows of `length` tokens; a step's batch is a pure function of (seed, step)."""

    tokens: Int[np.ndarray, " size"]
    length: int
    batch: int

    @classmethod
    def of(cls, split: TextSplit, length: int, batch: int) -> "Windows":
        """The windows of a split. Raises UserError for a split that is shorter than one window."""
        if (size := len(split.tokens)) < length:
            raise UserError(
                f"config.data.length={length}: the training text has only {size:,} tokens. Lower it, or give a longer "
                "text."
            )
        return cls(split.tokens, length, batch)

    def drawn(self, seed: int, step: int, stop: int) -> Int[np.ndarray, "steps batch"]:
        """The index of each window's first target, uniformly drawn, for the steps from `step` to before `stop`."""
        count = len(self.tokens) - self.length + 1
        drawn = [np.random.default_rng((seed, now)).integers(count, size=self.batch) for now in range(step, stop)]
        return np.stack(drawn)

    def at(self, starts: Int[np.ndarray, "*rows"]) -> Rows:
        """The windows whose first targets are at `starts`."""
        return windows_at(self.tokens, starts, self.length)

    def rows(self, seed: int, step: int, stop: int) -> Rows:
        """The windows of the steps from `step` to before `stop`, `[steps, batch, length]`."""
        return self.at(self.drawn(seed, step, stop))

    def in_order(self, stride: int) -> Iterator[Rows]:
        """Every token of the text as a target once, in batches that are filled up with padding.

        A window begins `stride` tokens after the one before, and counts the targets that are new in it. So all tokens
        but the first `length` are predicted from `length` − `stride` tokens or more. Raises ValueError for a stride
        that leaves tokens out.
        """
        if not 1 <= stride <= self.length:
            raise ValueError(f"stride={stride}: needs 1 to {self.length}, the length of a window.")
        starts, fresh = _side_by_side(len(self.tokens), self.length, stride)
        for first in range(0, len(starts), self.batch):
            batch = slice(first, first + self.batch)
            rows = windows_at(self.tokens, starts[batch], self.length)
            is_fresh = np.arange(self.length) >= fresh[batch, None]
            yield filled(rows._replace(is_counted=rows.is_counted & is_fresh), self.batch)


def windows_at(tokens: np.ndarray, starts: Int[np.ndarray, "*rows"], length: int) -> Rows:
    """The windows whose first targets are at `starts`; padding after the text's end does not count."""
    index = np.asarray(starts)[..., None] + np.arange(-1, length)
    is_token = index < len(tokens)
    found = np.where(is_token, tokens[np.clip(index, 0, len(tokens) - 1)], PAD).astype(np.int32)
    found[index < 0] = EOS
    return Rows(found[..., :-1], found[..., 1:], is_token[..., 1:])


def filled(rows: Rows, batch: int) -> Rows:
    """The rows, filled up with rows of padding to `batch`."""
    missing = batch - len(rows.tokens)
    return Rows._make(None if part is None else np.pad(part, ((0, missing), (0, 0))) for part in rows)


def _side_by_side(size: int, length: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Each window's start, and how many of its targets earlier windows count; the last starts as late as it can."""
    last = max(size - length, 0)
    starts = np.minimum(np.arange(0, last + stride, stride), last)
    return starts, np.concatenate([[0], starts[:-1] + length - starts[1:]])
