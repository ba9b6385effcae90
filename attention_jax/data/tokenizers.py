"""Tokenizers: text to ids and back. Ids 0 to 3 are padding, begin, end and unknown in every one."""

import collections
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from attention_jax.errors import UserError

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
PAD, BOS, EOS, UNK = range(4)
_NO_BREAK_SPACES = str.maketrans({"\u202f": " ", "\xa0": " "})


class Tokenizer(Protocol):
    """What a corpus needs of a tokenizer."""

    size: int

    def encode(self, text: str) -> list[int]:
        """Ids of a sentence, without begin or end."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids up to the first end or padding."""

    def words(self, ids: Iterable[int]) -> list[str]:
        """One printable piece an id."""

    def save(self, path: Path) -> None:
        """Write it beside the data it made."""


def split_words(text: str) -> list[str]:
    """Lower-case words, with spaces put before , . ! ? and no-break spaces made plain."""
    text = text.translate(_NO_BREAK_SPACES).lower()
    return re.sub(r"(?<=\S)([,.!?])", r" \1", text).split()


class WordTokenizer:
    """The textbook's tokenizer: `split_words` and a vocabulary, most frequent words first."""

    def __init__(self, vocabulary: Sequence[str]):
        self._words = (*SPECIALS, *vocabulary)
        self._ids = {word: index for index, word in enumerate(self._words) if index >= len(SPECIALS)}
        self.size = len(self._words)

    @classmethod
    def train(cls, texts: Iterable[str], min_count: int, vocabulary: int) -> "WordTokenizer":
        """At most `vocabulary` entries, specials included, of the words seen `min_count` times or more."""
        if vocabulary <= len(SPECIALS):
            raise UserError(
                f"config.data.vocabulary={vocabulary}: every word would be <unk>; the first {len(SPECIALS)} are taken."
            )
        counts = collections.Counter(word for text in texts for word in split_words(text))
        kept = [word for word, count in counts.most_common() if count >= min_count and word not in SPECIALS]
        if not kept:
            raise UserError(
                f"no word is seen {min_count} times: every word would be <unk>. Lower --config.data.min_count."
            )
        return cls(kept[: vocabulary - len(SPECIALS)])

    @classmethod
    def load(cls, path: Path) -> "WordTokenizer":
        return cls(path.read_text(encoding="utf-8").split("\n")[len(SPECIALS) : -1])

    def save(self, path: Path) -> None:
        path.write_text("".join(f"{word}\n" for word in self._words), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, UNK) for word in split_words(text)]

    def words(self, ids: Iterable[int]) -> list[str]:
        return [self._words[index] for index in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return re.sub(r" ([,.!?])", r"\1", " ".join(self.words(until_end(ids))))


def with_end(ids: Sequence[int], max_length: int) -> list[int]:
    """The ids and the end, cut to `max_length`."""
    return [*ids, EOS][:max_length]


def until_end(ids: Iterable[int]) -> list[int]:
    """The ids before the first end or padding."""
    kept = []
    for index in ids:
        if index in (EOS, PAD):
            break
        kept.append(int(index))
    return kept
