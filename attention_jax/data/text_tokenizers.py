"""Tokenizers of running text that can give every character back: characters, bytes, pieces.

Ids 0 to 3 are padding, begin, end and unknown, as everywhere. No character is encoded as `EOS`; it marks a text's end.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int

from attention_jax.data.text_sources import Chunk
from attention_jax.data.tokenizers import SPECIALS, SUBWORDS, UNK, processor_of, sampled, train_pieces
from attention_jax.errors import UserError
from attention_jax.files import read_json

LINES_LEARNT_FROM = 200_000  # the most lines that pieces are learnt from
LONGEST_LEARNT, LONGEST_ENCODED = 1_000, 10_000  # characters; longer lines are cut, so that memory is bounded
CODE_POINTS = 0x110000
UNKNOWN = "\ufffd"
Tokens = tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " texts"]]


class TextTokenizer(Protocol):
    """What every tokenizer of texts has."""

    size: int

    @property
    def content(self) -> bytes:
        """The tokenizer as bytes, to be saved."""

    def encode_all(self, texts: Sequence[str]) -> Tokens:
        """The ids of all texts end to end, and the number of ids of each text."""

    def words(self, ids: Iterable[int]) -> list[str]:
        """A printable piece for each id."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without padding, begin and end; an unknown token or a part of a character gives U+FFFD."""


class CharacterTokenizer:
    """Each character is a token, with ids in the order of code points. Characters that it has not seen are unknown."""

    def __init__(self, characters: Iterable[str]):
        self._characters = sorted(set(characters))
        self._words = [*SPECIALS, *self._characters]
        self.size = len(self._words)
        self._ids = np.full(CODE_POINTS, UNK, dtype_of(self.size))
        self._ids[[ord(character) for character in self._characters]] = np.arange(len(SPECIALS), self.size)

    @classmethod
    def learn(cls, chunks: Iterable[Chunk]) -> "CharacterTokenizer":
        """The tokenizer of all characters of a text."""
        is_seen = np.zeros(CODE_POINTS, bool)
        for chunk in chunks:
            is_seen[_code_points(chunk.text)] = True
        return cls(map(chr, np.flatnonzero(is_seen).tolist()))

    @classmethod
    def load(cls, content: bytes) -> "CharacterTokenizer":
        characters = read_json(content)
        if not isinstance(characters, list) or not all(isinstance(one, str) and len(one) == 1 for one in characters):
            raise ValueError("a list of characters is needed")
        return cls(characters)

    @property
    def content(self) -> bytes:
        return json.dumps(self._characters, ensure_ascii=False).encode()

    def encode_all(self, texts: Sequence[str]) -> Tokens:
        return self._ids[_code_points("".join(texts))], _lengths(texts)

    def words(self, ids: Iterable[int]) -> list[str]:
        return [self._words[index] for index in ids]

    def decode(self, ids: Iterable[int]) -> str:
        shown = ["", "", "", UNKNOWN, *self._characters]
        return "".join(shown[index] for index in ids)


class ByteTokenizer:
    """The bytes of UTF-8 are the tokens: byte b has id b + 4."""

    size = len(SPECIALS) + 256

    @classmethod
    def learn(cls, chunks: Iterable[Chunk]) -> "ByteTokenizer":
        """The tokenizer; it learns nothing from the text."""
        del chunks
        return cls()

    @classmethod
    def load(cls, content: bytes) -> "ByteTokenizer":
        del content
        return cls()

    @property
    def content(self) -> bytes:
        return b"bytes\n"

    def encode_all(self, texts: Sequence[str]) -> Tokens:
        encoded = [text.encode() for text in texts]
        return np.frombuffer(b"".join(encoded), np.uint8) + np.uint16(len(SPECIALS)), _lengths(encoded)

    def words(self, ids: Iterable[int]) -> list[str]:
        shown = [
            *SPECIALS,
            *(chr(byte) if chr(byte).isprintable() and byte < 128 else f"{byte:02x}" for byte in range(256)),
        ]
        return [shown[index] for index in ids]

    def decode(self, ids: Iterable[int]) -> str:
        found = (int(index) - len(SPECIALS) for index in ids if index >= UNK)
        return b"".join(bytes((byte,)) if byte >= 0 else UNKNOWN.encode() for byte in found).decode(errors="replace")


class PieceTokenizer:
    """Pieces of lines, learnt by sentencepiece ("unigram" or "bpe"). Case and spaces stay; rare characters are bytes.

    One character is not given back: U+2581, which sentencepiece uses for a space, comes back as a space.
    """

    def __init__(self, model: bytes):
        self.content = model
        self._pieces = processor_of(model)
        self.size = self._pieces.vocab_size()

    @classmethod
    def learn(cls, chunks: Iterable[Chunk], algorithm: str, vocabulary: int) -> "PieceTokenizer":
        """`vocabulary` pieces learnt from lines of a text, specials and 256 bytes included; a small text gives fewer.

        Raises UserError for a vocabulary that is too small for the text's characters.
        """
        lines = itertools.chain.from_iterable(_segments(chunk.text, LONGEST_LEARNT) for chunk in chunks)
        kept = [line.removesuffix("\n") for line in sampled(lines, LINES_LEARNT_FROM) if not line.isspace()]
        if not kept:
            raise UserError("config.data.path: the training text is white space alone. Give another text.")
        return cls(
            train_pieces(
                kept,
                algorithm,
                vocabulary,
                character_coverage=0.9995,
                byte_fallback=True,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                add_dummy_prefix=False,
                user_defined_symbols=["\n"],
                unk_surface=UNKNOWN,
            )
        )

    def encode_all(self, texts: Sequence[str]) -> Tokens:
        segments = [_segments(text, LONGEST_ENCODED) for text in texts]
        found = self._pieces.encode(list(itertools.chain.from_iterable(segments)), num_threads=1)
        ends = np.cumsum([0, *map(len, found)])
        tokens = np.fromiter(itertools.chain.from_iterable(found), dtype_of(self.size), int(ends[-1]))
        return tokens, np.diff(ends[np.cumsum([0, *map(len, segments)])])

    def words(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces.id_to_piece(int(index)) for index in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return self._pieces.decode([int(index) for index in ids])


class Maker(NamedTuple):
    """How a tokenizer is learnt, from (chunks of a text, its name, vocabulary), and how it is loaded from `content`."""

    learn: Callable[[Iterable[Chunk], str, int], TextTokenizer]
    load: Callable[[bytes], TextTokenizer]


_PIECES = Maker(PieceTokenizer.learn, PieceTokenizer)
TEXT_TOKENIZERS: dict[str, Maker] = {
    "characters": Maker(lambda chunks, name, vocabulary: CharacterTokenizer.learn(chunks), CharacterTokenizer.load),
    "bytes": Maker(lambda chunks, name, vocabulary: ByteTokenizer.learn(chunks), ByteTokenizer.load),
    **dict.fromkeys(SUBWORDS, _PIECES),
}


def learn_text_tokenizer(name: str, chunks: Iterator[Chunk], vocabulary: int) -> TextTokenizer:
    """A tokenizer of `TEXT_TOKENIZERS`, learnt from a text that is read once; only pieces have a `vocabulary`."""
    return TEXT_TOKENIZERS[name].learn(chunks, name, vocabulary)


def load_text_tokenizer(name: str, path: Path) -> TextTokenizer:
    """A tokenizer from its file. Raises UserError for a name or a file that is none."""
    try:
        return TEXT_TOKENIZERS[name].load(path.read_bytes())
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: not a vocabulary of {name!r} ({error}). Put the original file back.") from None


def encode(tokenizer: TextTokenizer, text: str) -> Int[np.ndarray, " tokens"]:
    """The ids of one text, without begin or end."""
    return tokenizer.encode_all([text])[0]


def digest(tokenizer: TextTokenizer) -> str:
    """The SHA-256 digest of a tokenizer's content."""
    return hashlib.sha256(tokenizer.content).hexdigest()


def dtype_of(size: int) -> np.dtype:
    """The smallest type of unsigned numbers that holds `size` different ids."""
    return np.dtype(np.min_scalar_type(size - 1))


def _code_points(text: str) -> Int[np.ndarray, " characters"]:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _segments(text: str, longest: int) -> list[str]:
    """The text's lines with their ends; lines that are longer than `longest` are cut."""
    lines = text.splitlines(keepends=True)
    if max(map(len, lines), default=0) <= longest:
        return lines
    return [line[start : start + longest] for line in lines for start in range(0, len(line), longest)]


def _lengths(texts: Sequence[str] | Sequence[bytes]) -> Int[np.ndarray, " texts"]:
    return np.fromiter(map(len, texts), np.int64, len(texts))
