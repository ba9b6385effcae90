"""Tokenized sentences end to end, in memory or mapped from files, which are written sentence by sentence."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from attention_jax.data.tokenizers import PAD

WRITTEN_AT_ONCE = 2**16  # numbers that a writer holds


@dataclass(frozen=True)
class Sentences:
    """Sentence i is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @classmethod
    def join(cls, sentences: Iterable[Sequence[int] | np.ndarray]) -> "Sentences":
        """Sentences end to end, in memory."""
        sentences = list(sentences)
        offsets = np.concatenate([[0], np.cumsum([len(s) for s in sentences])]).astype(np.int64)
        return cls(np.fromiter((t for s in sentences for t in s), np.int32, count=int(offsets[-1])), offsets)

    @classmethod
    def open(cls, folder: Path, name: str) -> "Sentences":
        """The sentences of a `SentenceWriter`'s files, memory-mapped."""
        return cls(open_array(folder / f"{name}.npy"), open_array(folder / f"{name}.offsets.npy"))

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def rows(self, sentences: Int[np.ndarray, " rows"], length: int) -> Int[np.ndarray, "rows length"]:
        """The sentences at these indices, padded at the end; a negative index gives a row of padding."""
        starts, ends = self.offsets[np.maximum(sentences, 0)], self.offsets[np.maximum(sentences, 0) + 1]
        index = starts[:, None] + np.arange(length)
        is_word = (index < ends[:, None]) & (sentences >= 0)[:, None]
        return np.where(is_word, self.tokens[np.where(is_word, index, 0)], PAD).astype(np.int32)


class ArrayWriter:
    """Writes an .npy file of one axis, to which numbers are added, in bounded memory."""

    def __init__(self, path: Path, dtype: np.dtype | type):
        self._dtype, self._held, self._count = np.dtype(dtype), [], 0  # type: ignore[var-annotated]
        self._file = open(path, "wb")  # noqa: SIM115 (`close` does)
        self._write_header()

    def extend(self, numbers: Iterable[int]) -> None:
        """Add numbers to the end."""
        self._held.extend(numbers)
        if len(self._held) >= WRITTEN_AT_ONCE:
            self._flush()

    def write(self, numbers: np.ndarray) -> None:
        """Add an array to the end, without holding it."""
        self._flush()
        self._file.write(np.ascontiguousarray(numbers, self._dtype).data)
        self._count += len(numbers)

    def close(self) -> None:
        """Write what is held, and the header with the count of all numbers."""
        self._flush()
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _flush(self) -> None:
        self._file.write(np.asarray(self._held, self._dtype).tobytes())
        self._count += len(self._held)
        self._held.clear()

    def _write_header(self) -> None:  # NumPy pads it, so that a larger count takes the same number of bytes
        description = np.lib.format.dtype_to_descr(self._dtype)
        shape = {"descr": description, "fortran_order": False, "shape": (self._count,)}
        np.lib.format.write_array_header_1_0(self._file, shape)


class SentenceWriter:
    """Writes `Sentences` as two files: NAME.npy and NAME.offsets.npy."""

    def __init__(self, folder: Path, name: str, vocabulary: int):
        self._tokens = ArrayWriter(folder / f"{name}.npy", np.uint16 if vocabulary <= 2**16 else np.int32)
        self._offsets = ArrayWriter(folder / f"{name}.offsets.npy", np.int64)
        self._end = 0
        self._offsets.extend([0])

    def append(self, sentence: Sequence[int]) -> None:
        """Add a sentence to the end."""
        self._tokens.extend(sentence)
        self._end += len(sentence)
        self._offsets.extend([self._end])

    def close(self) -> None:
        self._tokens.close()
        self._offsets.close()


def open_array(path: Path) -> np.ndarray:
    """An .npy file, memory-mapped; an empty file, which cannot be mapped, as an empty array."""
    try:
        return np.load(path, mmap_mode="r")
    except ValueError:
        return np.load(path)
