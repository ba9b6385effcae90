"""A corpus in its folder: memory-mapped token arrays, vocabularies, texts.

DATA/meta.json                      counts, what was skipped or truncated, digests of all other files
DATA/{source,target}.vocabulary     one word a line, or a sentencepiece model
DATA/SPLIT.{source,target}.npy      all tokens end to end; …offsets.npy has each sentence's start
DATA/SPLIT.bucket_LENGTH.npy        the indices of the pairs that are padded to that length
DATA/SPLIT.pairs.jsonl              the pairs as text; "rest" has the file's pairs that are in no split
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attention_jax.data import digests
from attention_jax.data.digests import digest_of, require_intact
from attention_jax.data.sentences import Sentences, open_array
from attention_jax.data.sources import Pair
from attention_jax.data.splits import REST, sentence_key
from attention_jax.data.tokenizers import TOKENIZERS, Tokenizer, load_tokenizer, plain, split_words
from attention_jax.errors import UserError
from attention_jax.files import read_json

SIDES = ("source", "target")
KEYS = {  # of meta.json, with their types
    **{"pairs": dict, "tokenizer": str, "languages": list, "vocabulary": list},
    **{"vocabulary_digests": list, "buckets": list, "fingerprint": str},
}


class Reference(NamedTuple):
    """A source sentence with all its translations, and the alignment of the first translation if it is known."""

    source: str
    targets: list[str]
    alignment: list[list[int]] | None


class Split(NamedTuple):
    """A split's pairs, which losses are computed on, and its references, which translations are compared with."""

    source: Sentences
    target: Sentences
    buckets: dict[int, np.ndarray]  # padded length → indices of its pairs
    references: list[Reference]  # empty for "train"
    source_words: Sequence[int] = ()  # how many words each pair's source has as text; empty for "train"


class Corpus(NamedTuple):
    """An imported corpus."""

    splits: dict[str, Split]
    source: Tokenizer
    target: Tokenizer
    meta: dict

    @property
    def vocabulary(self) -> str:
        """The digests of both sides' vocabularies."""
        return " ".join(self.meta["vocabulary_digests"])


def load(folder: Path, given: Collection[str] = ()) -> Corpus:
    """An imported corpus, its token arrays memory-mapped.

    Splits that `given` names come from files of their own, and have a reference for each line. Other splits have one
    for each different sentence, with all its translations. Raises UserError if a file is not the import's.
    """
    meta = read_meta(folder)
    source, target = load_tokenizers(folder, meta)
    texts = [texts_file(folder, name).name for name in meta["pairs"] if name != "train"]
    require_intact(folder, meta, [*_array_files(folder, meta), *texts], _token_files(meta))
    splits = {name: _load_split(folder, name, meta["buckets"], name in given) for name in meta["pairs"]}
    return Corpus(splits, source, target, meta)


def read_meta(folder: Path) -> dict:
    """The import's meta.json. Raises UserError if it is missing or damaged."""
    meta = digests.read_meta(folder, KEYS)
    are_whole = {
        "pairs": _are([*meta["pairs"].values()], int) and "train" in meta["pairs"],
        "tokenizer": meta["tokenizer"] in TOKENIZERS,
        "languages": _are(meta["languages"], str, len(SIDES)),
        "vocabulary_digests": _are(meta["vocabulary_digests"], str, len(SIDES)),
        "buckets": _are(meta["buckets"], int),
    }
    if damaged := [key for key, is_whole in are_whole.items() if not is_whole]:
        raise digests.unusable(folder / digests.META, f"damaged: {damaged[0]} is {meta[damaged[0]]!r}")
    return meta


def _are(items: Sequence[Any], kind: type, count: int | None = None) -> bool:
    return all(isinstance(item, kind) for item in items) and count in (None, len(items))


def load_tokenizers(folder: Path, meta: dict) -> list[Tokenizer]:
    """Both sides' tokenizers. Raises UserError if one is missing or not the import's."""
    paths = [folder / f"{side}.vocabulary" for side in SIDES]
    for path, digest in zip(paths, meta["vocabulary_digests"], strict=True):
        if not path.is_file():
            raise UserError(
                f"{path}: missing, and the run's numbers have no meaning without it. Start in another --workdir."
            )
        if digest_of(path) != digest:
            raise UserError(f"{path}: not the vocabulary this run was trained with. Put the original file back.")
    return [
        load_tokenizer(meta["tokenizer"], path, language)
        for path, language in zip(paths, meta["languages"], strict=True)
    ]


def load_references(folder: Path, sentences: Collection[str]) -> list[Reference]:
    """These sentences with all their translations in the imported file, from any split."""
    meta = read_meta(folder)
    names = (*meta["pairs"], REST)
    require_intact(folder, meta, [texts_file(folder, name).name for name in names], _token_files(meta))
    longest = [max(sentence.split(), key=len, default="") for sentence in sentences]
    pairs = (pair for name in names for pair in read_texts(folder, name, longest))
    return _grouped(pair for pair in pairs if sentence_key(pair) in sentences)


def read_texts(folder: Path, name: str, having: Collection[str] = ()) -> Iterator[Pair]:
    """A split's pairs, as text; where words are named, in lower case, at least the pairs that have one of them.

    Raises UserError for a line that is no pair.
    """
    path, parts = texts_file(folder, name), [json.dumps(word, ensure_ascii=False)[1:-1] for word in having]
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if parts and not _has_one(line, parts):  # much cheaper than to parse it
                continue
            try:
                pair = Pair(*read_json(line))
                if not all(isinstance(text, str) for text in pair[:3]):
                    raise ValueError
            except (TypeError, ValueError):
                raise digests.unusable(path, f"damaged: line {number} is no pair of sentences") from None
            yield pair


def _has_one(line: bytes, parts: Sequence[str]) -> bool:
    text = plain(line.decode(errors="replace"))
    return any(part in text for part in parts)


def bucket_file(folder: Path, name: str, length: int) -> Path:
    """The file with the indices of a bucket's pairs."""
    return folder / f"{name}.bucket_{length}.npy"


def texts_file(folder: Path, name: str) -> Path:
    """The file with a split's pairs as text."""
    return folder / f"{name}.pairs.jsonl"


def _token_files(meta: dict) -> list[str]:
    """The files that `fingerprint` is the digest of."""
    return [f"{name}.{side}.npy" for name in meta["pairs"] for side in SIDES]


def _array_files(folder: Path, meta: dict) -> list[str]:
    offsets = [f"{name}.{side}.offsets.npy" for name in meta["pairs"] for side in SIDES]
    buckets = [bucket_file(folder, name, length).name for name in meta["pairs"] for length in meta["buckets"]]
    return [*_token_files(meta), *offsets, *buckets]


def _load_split(folder: Path, name: str, lengths: Iterable[int], is_given: bool) -> Split:
    source, target = (Sentences.open(folder, f"{name}.{side}") for side in SIDES)
    buckets = {length: open_array(bucket_file(folder, name, length)) for length in lengths}
    pairs = [] if name == "train" else list(read_texts(folder, name))
    references = [_reference([pair]) for pair in pairs] if is_given else _grouped(pairs)
    return Split(source, target, buckets, references, [len(split_words(pair.source)) for pair in pairs])


def _grouped(pairs: Iterable[Pair]) -> list[Reference]:
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(sentence_key(pair), []).append(pair)
    return [_reference(group) for group in groups.values()]


def _reference(group: list[Pair]) -> Reference:
    return Reference(group[0].source, [pair.target for pair in group], group[0].alignment)  # type: ignore[arg-type]
