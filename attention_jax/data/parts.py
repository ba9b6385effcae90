"""A text as one stream of tokens: its first part to train on, the rest held out."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from attention_jax.data.digests import digest_of, read_meta, require_intact, write_meta
from attention_jax.data.grammar import sentence_pairs
from attention_jax.data.sources import require_file
from attention_jax.data.tokenizers import EOS, SPECIALS, SUBWORDS, UNK, SubwordTokenizer
from attention_jax.errors import UserError

EMBEDDED_SENTENCES = 20_000
ADVICE = "Any text in UTF-8 does: --config.data.path=FILE; without one, sentences are generated."
CHARACTERS = "characters"
TOKENIZERS = (CHARACTERS, *SUBWORDS)
ARRAYS = ("train.npy", "held_out.npy")
VOCABULARY = "text.vocabulary"


class Text(NamedTuple):
    """Tokens to train on and held out, and how many different ones there are."""

    train: np.ndarray
    held_out: np.ndarray
    vocabulary: int


class _Encoder(Protocol):
    size: int

    def encode(self, text: str) -> list[int]: ...

    def save(self, path: Path) -> None: ...


class CharacterTokenizer:
    """Every character of a text is a token."""

    def __init__(self, characters: Iterable[str]):
        self._characters = sorted(set(characters))
        self._ids = {character: place for place, character in enumerate(self._characters, start=len(SPECIALS))}
        self.size = len(SPECIALS) + len(self._characters)

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(character, UNK) for character in text]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self._characters, ensure_ascii=False), encoding="utf-8")


class _Lines:
    """Pieces of every line, and an end after it."""

    def __init__(self, text: str, kind: str, vocabulary: int):
        self._pieces = SubwordTokenizer.train((line for line in text.splitlines() if line.strip()), kind, vocabulary)
        self.size = self._pieces.size
        self.save = self._pieces.save

    def encode(self, text: str) -> list[int]:
        return [token for line in text.splitlines() for token in (*self._pieces.encode(line), EOS)]


def load_text(folder: Path, path: str, tokenizer: str, vocabulary: int, held_out: float, seed: int) -> Text:
    """The text of a file, or the embedded one where `path` is empty, tokenized once into `folder`.

    The last share `held_out` of it is not trained on. Raises UserError for a file that cannot be read, or one in
    `folder` that is not the one of the import.
    """
    folder = folder.resolve()  # cells of a sweep have a link, which may lead to nothing yet
    if not folder.exists():
        aside = folder.with_name(folder.name + ".partial")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            _import(aside, _read(path, seed), tokenizer, vocabulary, held_out)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        os.replace(aside, folder)
    meta = read_meta(folder, ("vocabulary", "fingerprint"))
    require_intact(folder, meta, (*ARRAYS, VOCABULARY), ARRAYS)
    train, rest = (np.load(folder / name, mmap_mode="r") for name in ARRAYS)
    return Text(train, rest, meta["vocabulary"])


def identify_text(path: str) -> str:
    """What tells a text from others: a digest of its file. Raises UserError where there is none."""
    if not path:
        return "embedded"
    require_file(Path(path), ADVICE)
    return digest_of(Path(path))


def require_usable(tokenizer: str, held_out: float) -> None:
    """Raise UserError for values that no text can be read with."""
    if tokenizer not in TOKENIZERS:
        raise UserError(f"config.data.tokenizer={tokenizer!r}: choose one of {', '.join(TOKENIZERS)}.")
    if not 0 < held_out < 1:
        raise UserError(f"config.data.held_out={held_out}: needs more than 0 and less than 1.")


def _read(path: str, seed: int) -> str:
    if not path:
        return "\n".join(pair.source for pair in sentence_pairs(seed, EMBEDDED_SENTENCES))
    require_file(Path(path), ADVICE)
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8. Convert it: iconv -t utf-8.") from None


def _import(folder: Path, text: str, kind: str, vocabulary: int, held_out: float) -> None:
    cut = round(len(text) * (1 - held_out))
    parts = text[:cut], text[cut:]
    encoder: _Encoder = CharacterTokenizer(parts[0]) if kind == CHARACTERS else _Lines(parts[0], kind, vocabulary)
    encoder.save(folder / VOCABULARY)
    for name, part in zip(ARRAYS, parts, strict=True):
        np.save(folder / name, np.array(encoder.encode(part), np.uint16))
    fingerprint = digest_of(*(folder / name for name in ARRAYS))
    write_meta(folder, {"vocabulary": encoder.size, "fingerprint": fingerprint})
