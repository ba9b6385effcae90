"""Import: a text of any size into a folder, block by block, in memory that does not grow with the text.

A text is read up to three times: to count it, where a share is held out; to learn characters or pieces; to tokenize it.
"""

import functools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from attention_jax.data.config import TextConfig
from attention_jax.data.digests import digest_of, identity_of, import_once, write_meta
from attention_jax.data.sentences import ArrayWriter
from attention_jax.data.text import VOCABULARY, Counts, Text, TextSplit, open_split, open_text
from attention_jax.data.text_sources import READERS, Chunk, files_of, has_documents, kind_of, read_text
from attention_jax.data.text_splits import HELD_OUT, SPLITS, divided_text, shares_of
from attention_jax.data.text_tokenizers import (
    TEXT_TOKENIZERS,
    TextTokenizer,
    dtype_of,
    learn_text_tokenizer,
)
from attention_jax.data.tokenizers import EOS, UNK
from attention_jax.errors import UserError

ENCODED_AT_ONCE = 2**20  # characters that a writer holds
PATIENCE = 3  # seconds before an import shows its progress


def load_text(folder: Path, config: TextConfig) -> Text:
    """The text in `folder`, imported first if it is not there, wholly or not at all.

    Raises UserError for bad input, naming the file and line or byte, or the config's key.
    """
    return open_text(import_once(folder, functools.partial(_import, config=config)))


def read_split(folder: Path, config: TextConfig, text: Text) -> TextSplit:
    """The whole text that `config` names, tokenized as `text` is and kept in `folder`, to measure a model on it.

    Nothing of it is held out: `held_out` and `held_out_test` are not read.
    """
    _require_source(config)
    chunks = (("all", chunk) for chunk in read_text(config, "train"))
    counts = _write_tokens(folder, chunks, ("all",), text.tokenizer, text.has_ends)
    return open_split(folder, "all", counts["all"])


def identify_text(config: TextConfig) -> str:
    """The identity of a text: a digest of its files, or its name. Raises UserError if a file is missing."""
    names = ("train", *(name for name in HELD_OUT if getattr(config, f"{name}_path")))
    files = [path for name in names for path in files_of(config, name)]
    return identity_of(*files) if files else config.source if kind_of(config) == "tfds" else "embedded"


def require_usable(config: TextConfig) -> None:
    """Raise UserError for values with which no text can be read and divided."""
    _require_source(config)
    shares = shares_of(config)
    if not config.validation_path and not 0 < config.held_out < 1:
        raise UserError(f"config.data.held_out={config.held_out}: needs more than 0 and less than 1.")
    if not 0 <= config.held_out_test < 1 or sum(shares.values()) >= 1:
        raise UserError(
            f"config.data.held_out_test={config.held_out_test}: needs 0 or more, and less than 1 together with "
            f"config.data.held_out={config.held_out}."
        )


def _require_source(config: TextConfig) -> None:
    """Raise UserError for values with which no text can be read."""
    choices = (("source", kind_of(config), READERS), ("tokenizer", config.tokenizer, TEXT_TOKENIZERS))
    for name, given, known in choices:
        if given not in known:
            raise UserError(f"config.data.{name}={getattr(config, name)!r}: choose one of {', '.join(known)}.")
    if (kind_of(config) == "tfds") != bool(config.source.partition(":")[2]):
        raise UserError(f"config.data.source={config.source!r}: only tfds takes a name: tfds:lm1b.")
    if kind_of(config) != "tfds" and not config.path:
        _require_generated(config)


def _require_generated(config: TextConfig) -> None:
    if kind_of(config) == "jsonl":
        raise UserError("config.data.path is not set: give the JSON lines with --config.data.path=FILE.")
    for name in SPLITS:
        if getattr(config, f"{name}_path"):
            given = getattr(config, f"{name}_path")
            raise UserError(f"config.data.{name}_path={given!r}: requires config.data.path, the folder that it is in.")


def _import(folder: Path, config: TextConfig) -> None:
    require_usable(config)
    tokenizer = _learnt_tokenizer(config)
    (folder / VOCABULARY).write_bytes(tokenizer.content)
    names = [name for name in SPLITS if getattr(config, f"{name}_path") or name == "train" or shares_of(config)[name]]
    has_ends = has_documents(config)
    counts = _write_tokens(folder, _shown(divided_text(config), "tokenized"), names, tokenizer, has_ends)
    empty = [name for name, count in counts.items() if not count.characters]
    if empty:
        given = f"path={config.path!r}" if config.path else f"source={config.source!r}"
        raise UserError(f"config.data.{given}: has no text for {', '.join(empty)}. Give another.")
    meta = {
        "tokenizer": config.tokenizer,
        "vocabulary": tokenizer.size,
        "has_ends": has_ends,
        "splits": {name: count._asdict() for name, count in counts.items()},
        "fingerprint": digest_of(*(folder / f"{name}.npy" for name in names)),
    }
    write_meta(folder, meta)


def _learnt_tokenizer(config: TextConfig) -> TextTokenizer:
    """A tokenizer that is learnt from the training split alone."""
    chunks = (chunk for name, chunk in _shown(divided_text(config), "read") if name == "train")
    return learn_text_tokenizer(config.tokenizer, chunks, config.vocabulary)


def _write_tokens(
    folder: Path, chunks: Iterable[tuple[str, Chunk]], names: Iterable[str], tokenizer: TextTokenizer, has_ends: bool
) -> dict[str, Counts]:
    writers = {name: _SplitWriter(folder, name, tokenizer, has_ends) for name in names}
    try:
        for name, chunk in chunks:
            writers[name].add(chunk)
    finally:
        counts = {name: writer.close() for name, writer in writers.items()}
    return counts


def _shown(chunks: Iterator[tuple[str, Chunk]], what: str) -> Iterator[tuple[str, Chunk]]:
    """The same chunks; if they take more than `PATIENCE`, stderr shows how much was read and how fast."""
    interval = 0.5 if sys.stderr.isatty() else 30
    bar = tqdm(
        desc=f"text {what}", unit=" characters", unit_scale=True, delay=PATIENCE, mininterval=interval, leave=False
    )
    with bar:
        for name, chunk in chunks:
            yield name, chunk
            bar.update(len(chunk.text))


class _SplitWriter:
    """Writes a split's files, chunk by chunk; many chunks are tokenized at once."""

    def __init__(self, folder: Path, name: str, tokenizer: TextTokenizer, has_ends: bool):
        self._tokenizer, self._has_ends = tokenizer, has_ends
        self._tokens = ArrayWriter(folder / f"{name}.npy", dtype_of(tokenizer.size))
        self._documents = ArrayWriter(folder / f"{name}.documents.npy", np.int64)
        self._documents.extend([0])
        self._totals = dict.fromkeys(Counts._fields, 0)
        self._held: list[Chunk] = []
        self._characters = 0  # of what is held
        self._is_in_word = self._is_in_document = False

    def add(self, chunk: Chunk) -> None:
        """Add some text to the end."""
        self._held.append(chunk)
        self._characters += len(chunk.text)
        if self._characters >= ENCODED_AT_ONCE:
            self._flush()

    def close(self) -> Counts:
        """Write what is held; a running text ends here. Returns the split's counts."""
        self._flush()
        if self._is_in_document:
            self._documents.extend([self._totals["tokens"]])
            self._totals["documents"] += 1
        self._tokens.close()
        self._documents.close()
        return Counts(**self._totals)

    def _flush(self) -> None:
        for chunk in self._held:
            self._count(chunk)
        tokens, lengths = self._tokenizer.encode_all([chunk.text for chunk in self._held])
        ends = np.cumsum(lengths)[np.array([chunk.is_last for chunk in self._held], bool)]
        if self._has_ends:
            tokens = np.insert(tokens, ends, EOS)
            ends = ends + np.arange(1, len(ends) + 1)
        self._documents.write(self._totals["tokens"] + ends)
        self._tokens.write(tokens)
        self._totals["tokens"] += len(tokens)
        self._totals["documents"] += len(ends)
        self._totals["unknown"] += int(np.count_nonzero(tokens == UNK))
        self._held.clear()
        self._characters = 0

    def _count(self, chunk: Chunk) -> None:
        text, totals = chunk.text, self._totals
        totals["bytes"] += len(text.encode())
        totals["characters"] += len(text)
        if text:
            totals["words"] += len(text.split()) - (self._is_in_word and not text[0].isspace())
            self._is_in_word = not text[-1].isspace()
        self._is_in_document = not chunk.is_last and (self._is_in_document or bool(text))
        self._is_in_word &= not chunk.is_last
