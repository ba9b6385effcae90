"""Sources of texts: files, folders, JSON lines and TFDS, read in blocks. Errors name the file and the line or byte.

A text file by itself is one running text, without an end. A folder, JSON lines and TFDS have documents, each with an
end.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from attention_jax.data.config import TextConfig
from attention_jax.data.sources import at_home, require_file
from attention_jax.errors import UserError
from attention_jax.stopping import polled

BLOCK = 2**20  # how many bytes of a file are read at once
EMBEDDED_SENTENCES = 20_000
ADVICE = (
    "--config.data.path=FILE takes any text in UTF-8, or a folder of *.txt; JSON lines are read with "
    "--config.data.source=jsonl."
)
JSONL_ADVICE = "--config.data.path=FILE takes a document a line, as JSON, or a folder of *.jsonl."


class Chunk(NamedTuple):
    """A part of a document's text, and whether it is the last part."""

    text: str
    is_last: bool = True


def read_text(config: TextConfig, name: str) -> Iterator[Chunk]:
    """A split's text, in order; of "train", the whole text from which shares are held out.

    Documents without a character are left out. Raises UserError for bad input, naming the file and line or byte.
    """
    return polled(READERS[kind_of(config)](config, name))


def kind_of(config: TextConfig) -> str:
    """The source's name in `READERS`: "tfds" of "tfds:lm1b"."""
    return config.source.partition(":")[0]


def has_documents(config: TextConfig) -> bool:
    """Whether the source has documents, each with an end, and not one running text."""
    return kind_of(config) != "text" or (bool(config.path) and _path(config, "train").is_dir())


def files_of(config: TextConfig, name: str) -> list[Path]:
    """The files of a split, in order; none if the source has no files. Raises UserError if one is missing."""
    kind = kind_of(config)
    if kind == "tfds" or (kind == "text" and not config.path):
        return []
    advice, ending = (ADVICE, "txt") if kind == "text" else (JSONL_ADVICE, "jsonl")
    given = _path(config, name)
    if not given.is_dir():
        require_file(given, advice)
        return [given]
    files = sorted(path for path in given.rglob(f"*.{ending}") if path.is_file() and path.stat().st_size)
    if not files:
        raise UserError(f"{given}: this folder has no *.{ending}, or only empty ones. {advice}")
    return files


def read_file(path: Path) -> Iterator[Chunk]:
    """A file's text in blocks, which end at a line's end if they have one. Raises UserError if it is not UTF-8."""
    with open(path, "rb") as file:
        offset, rest = 0, b""
        while block := file.read(BLOCK):
            whole, rest = _cut(rest + block)
            yield Chunk(_decoded(path, whole, offset), is_last=False)
            offset += len(whole)
        yield Chunk(_decoded(path, rest, offset))


def read_jsonl(path: Path, key: str) -> Iterator[Chunk]:
    """The text under `key` of each line, which is a JSON object; blank lines are skipped.

    Raises UserError for another line, naming it.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip() and (text := _text_of(line, key, f"{path}:{number}")):
                yield Chunk(text)


def _read_files(config: TextConfig, name: str) -> Iterator[Chunk]:
    if not config.path:
        return iter([Chunk(_generated(config.seed))])
    return (chunk for path in files_of(config, name) for chunk in read_file(path))


def _read_jsonl(config: TextConfig, name: str) -> Iterator[Chunk]:
    return (chunk for path in files_of(config, name) for chunk in read_jsonl(path, config.key))


def _read_tfds(config: TextConfig, name: str) -> Iterator[Chunk]:
    from attention_jax.data.tfds import read_tfds_text

    data_set, split = config.source.partition(":")[2], getattr(config, f"{name}_path") or "train"
    return (Chunk(text) for text in read_tfds_text(data_set, config.path, split, config.key) if text)


READERS: Mapping[str, Callable[[TextConfig, str], Iterator[Chunk]]] = {
    "text": _read_files,
    "jsonl": _read_jsonl,
    "tfds": _read_tfds,
}


def _path(config: TextConfig, name: str) -> Path:
    """A split's file or folder: if `train_path` is set, in the folder `path`; else `path` itself."""
    folder = at_home(config.path) if config.train_path else Path()
    return folder / at_home(getattr(config, f"{name}_path") or config.path)


@functools.lru_cache(maxsize=1)  # an import reads it up to three times
def _generated(seed: int) -> str:
    from attention_jax.data.grammar import sentence_pairs

    return "\n".join(pair.source for pair in sentence_pairs(seed, EMBEDDED_SENTENCES))


def _cut(block: bytes) -> tuple[bytes, bytes]:
    """The block's whole lines, and the rest; without a line's end, its whole characters, and the rest."""
    end = block.rfind(b"\n") + 1
    if not end:
        end = len(block)
        while end > max(len(block) - 4, 1) and block[end - 1] & 0xC0 == 0x80:  # inside a character
            end -= 1
        end -= block[end - 1] >= 0xC0  # its first byte
    return block[:end], block[end:]


def _decoded(path: Path, block: bytes, offset: int) -> str:
    try:
        text = block.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {offset + error.start:,} is not UTF-8. Convert it: iconv -t utf-8.") from None
    return text if offset else text.removeprefix("\ufeff")


def _text_of(line: bytes, key: str, where: str) -> str:
    try:
        found = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: byte {error.start + 1} of the line is not UTF-8. Convert the file.") from None
    except (RecursionError, ValueError) as error:
        why = getattr(error, "msg", error)
        raise UserError(
            f"{where}: not JSON ({why}). Each line must be an object, such as {{{json.dumps(key)}: ...}}."
        ) from None
    text = found.get(key) if isinstance(found, dict) else None
    if not isinstance(text, str):
        has = f"its keys are {', '.join(found)}" if isinstance(found, dict) else "it is not an object"
        raise UserError(f"{where}: no text under {key!r}: {has}. Name the key with --config.data.key.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: half a character (a lone surrogate, \\ud800 to \\udfff). Mend the line.") from None
    return text
