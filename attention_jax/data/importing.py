"""Import: any source into a corpus folder, pair by pair.

Memory does not grow with the corpus, but with the number of different words, of sentences that are held out, and of
`config.data.train`. Pieces are learnt from at most a million sentences (`tokenizers.LEARNT_FROM`), held in memory.
"""

import bisect
import contextlib
import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from attention_jax.data.config import DataConfig, require_buckets
from attention_jax.data.corpus import (
    SIDES,
    Corpus,
    bucket_file,
    load,
    load_tokenizers,
    read_meta,
    read_texts,
    texts_file,
)
from attention_jax.data.digests import digest_of, identity_of, import_once, write_meta
from attention_jax.data.grammar import LANGUAGES
from attention_jax.data.sentences import ArrayWriter, SentenceWriter
from attention_jax.data.sources import READERS, BadLines, Pair, kind_of, read_pairs, require_files
from attention_jax.data.splits import REST, SHARE, SPLITTERS, sentence_key, sizes_of
from attention_jax.data.tokenizers import EOS, SPECIALS, TOKENIZERS, Tokenizer, train_tokenizer
from attention_jax.errors import UserError
from attention_jax.stopping import polled

HELD_OUT = ("validation", "test")
SPLITS = ("train", *HELD_OUT)
ALL = (*SPLITS, REST)
LEAST = {"train": 0, "validation": 0, "test": 0, "min_count": 1, "max_length": 2, "batch_tokens": 1}
ON_LONG = ("error", "truncate", "skip")


def load_or_import(folder: Path, config: DataConfig, vocabularies: Path | None = None) -> Corpus:
    """The corpus in `folder`, imported first if it is not there, wholly or not at all.

    `vocabularies` is the folder of another corpus, whose vocabularies are used instead of new ones.
    """
    folder = import_once(folder, functools.partial(import_corpus, config=config, vocabularies=vocabularies))
    return load(folder, given=[name for name in ("validation", "test") if getattr(config, f"{name}_path")])


def identify(config: DataConfig) -> str:
    """The identity of the config's data: a digest of its files, or the name of a data set."""
    files = require_files(config)
    return identity_of(*files) if files else config.source


def import_corpus(folder: Path, config: DataConfig, vocabularies: Path | None) -> None:
    """Read, split, build the vocabularies on the training split alone, tokenize, and write.

    Raises UserError for bad input, naming the file and line, or the config's key.
    """
    if vocabularies is not None and not vocabularies.is_dir():
        raise UserError(f"config.train.init_from={str(vocabularies.parent)!r}: holds no run of translation.")
    notes = _write_texts(folder, config)
    names = [name for name in SPLITS if texts_file(folder, name).stat().st_size]
    if "train" not in names:
        raise UserError(f"{config.path or config.source}: no sentence pair to train on.")
    tokenizers = _given_tokenizers(vocabularies, config) if vocabularies else _train_tokenizers(folder, config)
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        tokenizer.save(folder / f"{side}.vocabulary")
    written = {name: _write_tokens(folder, name, tokenizers, config) for name in names}
    meta = {
        "pairs": {name: kept for name, (kept, _) in written.items()},
        "tokenizer": config.tokenizer,
        "languages": config.languages,
        "vocabulary": [tokenizer.size for tokenizer in tokenizers],
        "vocabulary_digests": [digest_of(folder / f"{side}.vocabulary") for side in SIDES],
        "buckets": config.buckets,
        **notes.counts(),
        "too_long": {"pairs": sum(too_long for _, too_long in written.values()), "what": config.on_long},
        "too_long_by_split": {name: too_long for name, (_, too_long) in written.items()},
        "fingerprint": digest_of(*(folder / f"{name}.{side}.npy" for name in names for side in SIDES)),
    }
    write_meta(folder, meta)


def export_to_tfds(path: Path, config: DataConfig) -> tuple[list[str], dict]:
    """Write the config's corpus as a prepared data set of TFDS, in FOLDER/NAME, wholly or not at all.

    Returns its splits, and counts of what was skipped.
    """
    from attention_jax.data.tfds import write_tfds

    if not path.name.isidentifier() or not path.name.islower():
        raise UserError(f"--output={path}: {path.name!r} cannot name a data set. Use a–z, 0–9 and _.")
    if path.exists():
        raise UserError(f"--output={path}: is there already. Choose another name.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        notes = _write_texts(Path(folder), config)
        names = [name for name in SPLITS if texts_file(Path(folder), name).stat().st_size]
        splits = {name: functools.partial(read_texts, Path(folder), name) for name in names}
        write_tfds(Path(folder), path.name, config.languages, splits)
        os.replace(Path(folder) / path.name, path)
    return names, notes.counts()


def require_usable(config: DataConfig) -> None:
    """Raise UserError for values with which no corpus can be imported."""
    _require_choices(config)
    if config.joint_vocabulary and config.tokenizer in ("spacy", "moses"):
        raise UserError(
            f"config.data.joint_vocabulary=True: tokenizer={config.tokenizer!r} has rules for one language at a time. "
            "Set it False, or choose another tokenizer."
        )
    size, taken = config.vocabulary, len(SPECIALS)
    if size <= taken:
        raise UserError(f"config.data.vocabulary={size}: needs more than {taken}; else every word would be <unk>.")
    for name, least in LEAST.items():
        if getattr(config, name) < least and not (name in HELD_OUT and getattr(config, name) == SHARE):
            raise UserError(f"config.data.{name}={getattr(config, name)}: needs {least} or more.")
    if len(config.languages) != 2:
        raise UserError(f"config.data.languages={config.languages}: needs two, such as ('en', 'fr').")
    require_buckets(config.buckets)
    if config.max_length > config.buckets[-1]:
        raise UserError(
            f"config.data.max_length={config.max_length} exceeds the last of config.data.buckets={config.buckets}: "
            "raise that one too."
        )


def _require_choices(config: DataConfig) -> None:
    named = {"source": kind_of(config), **{name: getattr(config, name) for name in ("split", "tokenizer", "on_long")}}
    choices: dict[str, Collection[str]] = {
        "source": READERS,
        "split": SPLITTERS,
        "tokenizer": TOKENIZERS,
        "on_long": ON_LONG,
    }
    for name, known in choices.items():
        if named[name] not in known:
            raise UserError(f"config.data.{name}={getattr(config, name)!r}: choose one of {', '.join(known)}.")
    if (named["source"] == "tfds") != bool(config.source.partition(":")[2]):
        raise UserError(f"config.data.source={config.source!r}: only tfds takes a name: tfds:wmt14_translate/de-en.")


@dataclasses.dataclass
class Notes:
    """What was noticed while reading, by file: "train", and the splits that have files of their own."""

    bad_lines: dict[str, BadLines] = dataclasses.field(default_factory=dict)  # by file
    left_out: int = 0  # pairs of the training file whose source is in a held-out file
    repeated: dict[str, int] = dataclasses.field(default_factory=dict)  # pairs whose source is in their file before
    in_both: int = 0  # pairs of the test file whose source is in the validation file

    def counts(self) -> dict[str, Any]:
        """For meta.json: how many lines were bad, the first of them, and how many pairs were left out or repeated."""
        return {
            "bad_lines": sum(bad.count for bad in self.bad_lines.values()),
            "bad_lines_by_file": {name: bad.count for name, bad in self.bad_lines.items()},
            "first_bad_lines": [where for bad in self.bad_lines.values() for where in bad.first],
            "left_out": self.left_out,
            "repeated": self.repeated,
            "in_both": self.in_both,
        }


def assigned_pairs(config: DataConfig, notes: Notes) -> Iterator[tuple[str, Pair]]:
    """Every pair of the config's data, with its split; `notes` is filled on the way."""
    require_usable(config)
    if kind_of(config) not in ("embedded", "tfds") and not config.path:
        raise UserError("config.data.path is not set: give the data file with --config.data.path=PATH.")
    if config.source == "embedded" and config.path:
        raise UserError(
            f"config.data.path={config.path!r}: the embedded sentences are no file. Read yours as the corpus tsv, "
            "--config=configs/nmt.py:MODEL,tsv, or leave it out."
        )
    if config.source == "embedded" and tuple(config.languages) != LANGUAGES:
        raise UserError(
            f"config.data.languages={tuple(config.languages)}: the embedded sentences are {LANGUAGES} alone."
        )
    given = {"validation": config.validation_path, "test": config.test_path}
    held_out: set[str] = set()
    for name, path in given.items():
        own: set[str] = set()
        for pair in _read(config, name, path, notes) if path else ():
            _note_repeated(name, sentence_key(pair), own, held_out, notes)
            yield name, pair
        held_out |= own
    validation, test = (0 if path else getattr(config, name) for name, path in given.items())
    # With files for both, `train` pairs are drawn from all pairs, and those of held-out sentences are then left out.
    taken = held_out if validation or test else set()
    read = functools.partial(_read, config, "train", config.train_path, notes)
    validation, test = sizes_of(read, validation, test, taken)
    for name, pair in SPLITTERS[config.split](read, config.train, validation, test, config.seed, taken):
        is_held_out = bool(held_out) and name != REST and sentence_key(pair) in held_out
        notes.left_out += is_held_out
        yield REST if is_held_out else name, pair


def _read(config: DataConfig, name: str, path: str, notes: Notes) -> Iterator[Pair]:
    notes.bad_lines[name] = BadLines(config.on_bad_line)  # a file that is read twice is counted once
    return read_pairs(config, path, notes.bad_lines[name])


def _note_repeated(name: str, key: str, own: set[str], earlier: set[str], notes: Notes) -> None:
    notes.repeated[name] = notes.repeated.get(name, 0) + (key in own)
    notes.in_both += key in earlier
    own.add(key)


def _write_texts(folder: Path, config: DataConfig) -> Notes:
    """Write every split's pairs as text; returns what was noticed on the way."""
    notes = Notes()
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open(texts_file(folder, name), "w", encoding="utf-8")) for name in ALL}
        for name, pair in assigned_pairs(config, notes):
            files[name].write(json.dumps(pair, ensure_ascii=False) + "\n")
    return notes


def _train_tokenizers(folder: Path, config: DataConfig) -> list[Tokenizer]:
    def learn(sides: Sequence[str], language: str) -> Tokenizer:
        texts = (getattr(pair, side) for side in sides for pair in polled(read_texts(folder, "train")))
        return train_tokenizer(config.tokenizer, texts, language, config.min_count, config.vocabulary)

    if config.joint_vocabulary:
        return [learn(SIDES, config.languages[0])] * len(SIDES)
    return [learn((side,), language) for side, language in zip(SIDES, config.languages, strict=True)]


def _given_tokenizers(folder: Path, config: DataConfig) -> list[Tokenizer]:
    meta = read_meta(folder)
    for name in ("tokenizer", "languages"):
        now, there = getattr(config, name), meta[name]
        if (now if name == "tokenizer" else list(now)) != there:
            raise UserError(f"config.data.{name}={now!r}: config.train.init_from has {there!r}. Set the same.")
    return load_tokenizers(folder, meta)


def _write_tokens(folder: Path, name: str, tokenizers: Sequence[Tokenizer], config: DataConfig) -> tuple[int, int]:
    """Tokenize a split's pairs; returns how many were kept and how many were too long. Skipped pairs go to `REST`."""
    texts, read = texts_file(folder, name), texts_file(folder, f"{name}.read")
    texts.rename(read)
    too_long = 0
    with (
        contextlib.closing(_SplitWriter(folder, name, [tokenizer.size for tokenizer in tokenizers], config)) as split,
        open(read, encoding="utf-8") as lines,
        open(texts_file(folder, REST), "a", encoding="utf-8") as rest,
    ):
        for line in polled(lines):
            pair = Pair(*json.loads(line))
            texts_of_sides = (getattr(pair, side) for side in SIDES)
            ids = [[*tokenizer.encode(text), EOS] for tokenizer, text in zip(tokenizers, texts_of_sides, strict=True)]
            if (length := max(map(len, ids))) > config.max_length:
                too_long += 1
                _refuse_long(pair, length, config)
                if config.on_long == "skip":
                    rest.write(line)
                    continue
            split.append([tokens[: config.max_length] for tokens in ids], line)
    read.unlink()
    if not split.count:
        raise UserError(f"config.data.max_length={config.max_length}: no pair of {name!r} is as short. Raise it.")
    return split.count, too_long


def _refuse_long(pair: Pair, length: int, config: DataConfig) -> None:
    if config.on_long == "error":
        raise UserError(
            f"{pair.where}: {length} tokens with <eos>, more than config.data.max_length={config.max_length}. "
            "Raise it, or set --config.data.on_long=truncate or skip."
        )


class _SplitWriter:
    """Writes a split's files, pair by pair."""

    def __init__(self, folder: Path, name: str, vocabularies: Sequence[int], config: DataConfig):
        self.count = 0
        self._lengths = config.buckets
        self._sides = [
            SentenceWriter(folder, f"{name}.{side}", size) for side, size in zip(SIDES, vocabularies, strict=True)
        ]
        self._buckets = [ArrayWriter(bucket_file(folder, name, length), np.int64) for length in config.buckets]
        self._texts = open(texts_file(folder, name), "w", encoding="utf-8")  # noqa: SIM115 (`close` does)

    def append(self, ids: Sequence[Sequence[int]], line: str) -> None:
        for side, tokens in zip(self._sides, ids, strict=True):
            side.append(tokens)
        self._buckets[bisect.bisect_left(self._lengths, max(map(len, ids)))].extend([self.count])
        self._texts.write(line)
        self.count += 1

    def close(self) -> None:
        files: list[SentenceWriter | ArrayWriter | IO[str]] = [*self._sides, *self._buckets, self._texts]
        for file in files:
            file.close()
