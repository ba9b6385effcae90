"""Sentence pairs of random words, the same for all who are measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from attention_jax.data.tokenizers import EOS, PAD

WORDS_FROM = 4  # ids below have a meaning of their own
Ids = Int[np.ndarray, "pairs length"]


def random_pairs(pairs: int, length: int, vocabulary: int) -> dict[str, Ids]:
    """`source` and `target` [pairs, length]: half of `length` to `length` words each, with <eos>, then padding."""
    generator = np.random.default_rng(0)
    return {side: _sentences(generator, pairs, length, vocabulary) for side in ("source", "target")}


def _sentences(generator: np.random.Generator, pairs: int, length: int, vocabulary: int) -> Ids:
    lengths = generator.integers(length // 2, length + 1, (pairs, 1))
    words = generator.integers(WORDS_FROM, vocabulary, (pairs, length))
    index = np.arange(length)[None]
    return np.where(index < lengths - 1, words, np.where(index == lengths - 1, EOS, PAD)).astype(np.int32)


def random_words(rows: int, length: int, vocabulary: int) -> Ids:
    """Whole rows of words."""
    return np.random.default_rng(0).integers(WORDS_FROM, vocabulary, (rows, length)).astype(np.int32)


def write_pairs(path: Path, pairs: Mapping[str, Ids], vocabulary: int) -> Path:
    """The file that peers read."""
    arrays: dict[str, Any] = {"vocabularies": np.array([vocabulary, vocabulary]), **pairs}
    np.savez(path, **arrays)
    return path
