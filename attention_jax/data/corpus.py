"""A corpus, imported once into a folder: memory-mapped token arrays, vocabularies, references.

DATA/meta.json                      counts, what was skipped or truncated, the fingerprint
DATA/{source,target}.vocabulary     one word a line, or a sentencepiece model
DATA/SPLIT.{source,target}.npy      all tokens end to end; …offsets.npy where each sentence begins
DATA/SPLIT.references.jsonl         one source sentence a line with all its translations
"""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attention_jax.data.sources import BadLines, Pair, read_parallel, read_tsv
from attention_jax.data.splits import SPLITTERS, Splits, sentence_key
from attention_jax.data.tokenizers import EOS, SPECIALS, TOKENIZERS, Tokenizer, load_tokenizer, train_tokenizer
from attention_jax.errors import UserError

SIDES = ("source", "target")
LEAST = {"train": 0, "validation": 0, "test": 0, "min_count": 1, "max_length": 2, "batch_tokens": 1}
ON_LONG = ("error", "truncate", "skip")
EVERYTHING = "all"  # the references of every pair of the file, whichever split it went to


@dataclass(frozen=True)
class Sentences:
    """Tokenized sentences end to end: sentence i is `tokens[offsets[i]:offsets[i + 1]]`."""

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

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)


class Reference(NamedTuple):
    """A source sentence with all its translations, and the alignment of the first where it is known."""

    source: str
    targets: list[str]
    alignment: list[list[int]] | None


class Split(NamedTuple):
    """Pairs to compute a loss on and sentences to translate."""

    source: Sentences
    target: Sentences
    references: list[Reference]


class Corpus(NamedTuple):
    """An imported corpus."""

    splits: dict[str, Split]
    source: Tokenizer
    target: Tokenizer
    meta: dict


class DataConfig(NamedTuple):
    """`config.data`: every key is here, and a key that is not raises TypeError."""

    source: str
    path: str
    languages: tuple[str, str]
    train_path: str
    validation_path: str
    test_path: str
    split: str
    train: int
    validation: int
    test: int
    seed: int
    tokenizer: str
    joint_vocabulary: bool
    min_count: int
    vocabulary: int
    max_length: int
    on_long: str
    on_bad_line: str
    buckets: tuple[int, ...]
    batch_tokens: int
    on_device: bool


def load_or_import(folder: Path, config: DataConfig, vocabularies: Path | None = None) -> Corpus:
    """The corpus in `folder`, imported first where it is not there yet, whole or not at all.

    `vocabularies` is another corpus's folder whose vocabularies are to be used instead of new ones.
    """
    if not folder.exists():
        aside = folder.with_name(folder.name + ".partial")
        if vocabularies is not None and not vocabularies.is_dir():
            raise UserError(f"config.train.init_from: {vocabularies.parent} holds no run of translation.")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            import_corpus(aside, config, vocabularies)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        os.replace(aside, folder)
    return load(folder)


def load(folder: Path) -> Corpus:
    """An imported corpus, its token arrays memory-mapped."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    source, target = _load_tokenizers(folder, meta)
    return Corpus({name: _load_split(folder, name) for name in meta["pairs"]}, source, target, meta)


def load_references(folder: Path, name: str = EVERYTHING) -> list[Reference]:
    """A split's sentences with their translations; by default those of the whole file."""
    lines = (folder / f"{name}.references.jsonl").read_text(encoding="utf-8").split("\n")
    return [Reference(*json.loads(line)) for line in lines if line]


def import_corpus(folder: Path, config: DataConfig, vocabularies: Path | None) -> None:
    """Read, split, build the vocabularies on the training split alone, tokenize, and write.

    Raises UserError for every kind of bad input, naming the file and line or the key.
    """
    bad_lines = BadLines(config.on_bad_line)
    found, everything = _read_splits(config, bad_lines)
    splits = {name: pairs for name, pairs in found.items() if pairs}
    if "train" not in splits:
        raise UserError(f"{config.path or config.source}: no sentence pair to train on.")
    tokenizers = _given_tokenizers(vocabularies, config) if vocabularies else _train_tokenizers(splits["train"], config)
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        tokenizer.save(folder / f"{side}.vocabulary")
    digest, counts, too_long = hashlib.sha256(), {}, 0
    for name, pairs in splits.items():
        kept, cut = _fit(pairs, tokenizers, config)
        too_long += cut
        counts[name] = len(kept)
        for index, side in enumerate(SIDES):
            _save_sentences(folder, f"{name}.{side}", [ids[index] for _, ids in kept], digest)
        _save_references(folder, name, [pair for pair, _ in kept])
    _save_references(folder, EVERYTHING, everything)
    meta = {
        "pairs": counts,
        "tokenizer": config.tokenizer,
        "languages": config.languages,
        "vocabulary": [tokenizer.size for tokenizer in tokenizers],
        "vocabulary_digests": [_digest(folder / f"{side}.vocabulary") for side in SIDES],
        "bad_lines": len(bad_lines.places),
        "first_bad_lines": bad_lines.places[:5],
        "too_long": {"pairs": too_long, "what": config.on_long},
        "fingerprint": digest.hexdigest(),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def _train_tokenizers(pairs: Sequence[Pair], config: DataConfig) -> list[Tokenizer]:
    def learn(sides: Sequence[str], language: str) -> Tokenizer:
        texts = (getattr(pair, side) for side in sides for pair in pairs)
        return train_tokenizer(config.tokenizer, texts, language, config.min_count, config.vocabulary)

    if config.joint_vocabulary:
        return [learn(SIDES, config.languages[0])] * len(SIDES)
    return [learn((side,), language) for side, language in zip(SIDES, config.languages, strict=True)]


def _given_tokenizers(folder: Path, config: DataConfig) -> list[Tokenizer]:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    for name in ("tokenizer", "languages"):
        now, there = getattr(config, name), meta[name]
        if (now if name == "tokenizer" else list(now)) != there:
            raise UserError(f"config.data.{name}={now!r}: {folder}, to start from, has {there!r}.")
    return _load_tokenizers(folder, meta)


def _load_tokenizers(folder: Path, meta: dict) -> list[Tokenizer]:
    paths = [folder / f"{side}.vocabulary" for side in SIDES]
    for path, digest in zip(paths, meta["vocabulary_digests"], strict=True):
        if not path.is_file():
            raise UserError(
                f"{path}: missing, and the run's numbers mean nothing without it. Start in another --workdir."
            )
        if _digest(path) != digest:
            raise UserError(f"{path}: not the vocabulary this run was trained with. Put that one back.")
    return [
        load_tokenizer(meta["tokenizer"], path, language)
        for path, language in zip(paths, meta["languages"], strict=True)
    ]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_splits(config: DataConfig, bad_lines: BadLines) -> tuple[Splits, list[Pair]]:
    require_usable(config)
    if config.source != "embedded" and not config.path:
        raise UserError("config.data.path is not set: give the data file with --config.data.path=PATH.")
    given = {"validation": config.validation_path, "test": config.test_path}
    held_out = {name: list(_read(config, path, bad_lines)) for name, path in given.items() if path}
    pairs = list(_read(config, config.train_path, bad_lines))
    counts = {name: 0 if path else getattr(config, name) for name, path in given.items()}
    splits = SPLITTERS[config.split](pairs, config.train, counts["validation"], counts["test"], config.seed)
    seen = {sentence_key(pair) for name in held_out for pair in held_out[name]}
    splits["train"] = [pair for pair in splits["train"] if sentence_key(pair) not in seen]
    return {**splits, **held_out}, pairs


def require_usable(config: DataConfig) -> None:
    """Raise UserError for a value that no corpus can be imported with."""
    choices: dict[str, Collection[str]] = {
        "source": READERS,
        "split": SPLITTERS,
        "tokenizer": TOKENIZERS,
        "on_long": ON_LONG,
    }
    for name, known in choices.items():
        if getattr(config, name) not in known:
            raise UserError(f"config.data.{name}={getattr(config, name)!r}: choose one of {', '.join(known)}.")
    if config.joint_vocabulary and config.tokenizer == "spacy":
        raise UserError("config.data.joint_vocabulary=True: spaCy's rules are of one language alone.")
    size, taken = config.vocabulary, len(SPECIALS)
    if size <= taken:
        raise UserError(f"config.data.vocabulary={size}: every word would be <unk>; the first {taken} are taken.")
    for name, least in LEAST.items():
        if getattr(config, name) < least:
            raise UserError(f"config.data.{name}={getattr(config, name)}: needs {least} or more.")
    if len(config.languages) != 2:
        raise UserError(f"config.data.languages={config.languages}: needs two, such as ('en', 'fr').")
    if not config.buckets or list(config.buckets) != sorted(set(config.buckets)) or config.buckets[0] < 1:
        raise UserError(f"config.data.buckets={config.buckets}: needs lengths in rising order.")
    if config.max_length > config.buckets[-1]:
        raise UserError(
            f"config.data.max_length={config.max_length} exceeds the last of config.data.buckets={config.buckets}: "
            "raise that one too."
        )


def _read(config: DataConfig, name: str, bad_lines: BadLines) -> Iterator[Pair]:
    """The pairs of a file; where `train_path` names one, `path` is the folder of all."""
    folder = Path(config.path).expanduser() if config.train_path else Path()
    return READERS[config.source](config, folder / Path(name or config.path).expanduser(), bad_lines)


def _read_embedded(config: DataConfig, path: Path, bad_lines: BadLines) -> Iterator[Pair]:
    from attention_jax.data.grammar import sentence_pairs

    del path, bad_lines
    return sentence_pairs(config.seed)


READERS = {
    "embedded": _read_embedded,
    "tsv": lambda config, path, bad_lines: read_tsv(path, bad_lines),
    "parallel": lambda config, path, bad_lines: read_parallel(path, config.languages, bad_lines),
}


def _fit(
    pairs: Sequence[Pair], tokenizers: Sequence[Tokenizer], config: DataConfig
) -> tuple[list[tuple[Pair, list[list[int]]]], int]:
    kept, too_long = [], 0
    for pair in pairs:
        ids = [[*tokenizer.encode(getattr(pair, side)), EOS] for side, tokenizer in zip(SIDES, tokenizers, strict=True)]
        length = max(map(len, ids))
        if length > config.max_length:
            too_long += 1
            if config.on_long == "error":
                raise UserError(
                    f"{pair.where}: {length} tokens with <eos>, and config.data.max_length is {config.max_length}. "
                    "Raise it, or set --config.data.on_long=truncate or skip."
                )
            if config.on_long == "skip":
                continue
        kept.append((pair, [side[: config.max_length] for side in ids]))
    if not kept:
        raise UserError(f"no sentence of a split fits config.data.max_length={config.max_length}: raise it.")
    return kept, too_long


def _save_sentences(folder: Path, name: str, sentences: list[list[int]], digest) -> None:
    joined = Sentences.join(sentences)
    digest.update(joined.offsets.tobytes() + joined.tokens.tobytes())
    np.save(folder / f"{name}.npy", joined.tokens)
    np.save(folder / f"{name}.offsets.npy", joined.offsets)


def _save_references(folder: Path, name: str, pairs: Sequence[Pair]) -> None:
    grouped: dict[str, list[Pair]] = {}
    for pair in pairs:
        grouped.setdefault(sentence_key(pair), []).append(pair)
    with open(folder / f"{name}.references.jsonl", "w", encoding="utf-8") as file:
        for group in grouped.values():
            reference = Reference(group[0].source, [p.target for p in group], group[0].alignment)  # type: ignore[arg-type]
            file.write(json.dumps(reference, ensure_ascii=False) + "\n")


def _load_split(folder: Path, name: str) -> Split:
    source, target = (
        Sentences(*(np.load(folder / f"{name}.{side}{part}.npy", mmap_mode="r") for part in ("", ".offsets")))
        for side in SIDES
    )
    return Split(source, target, load_references(folder, name))
