"""The keys of `config.data`."""

from typing import Any, NamedTuple

from attention_jax.errors import UserError


class DataConfig(NamedTuple):
    """`config.data` of a translation: all its keys. Another key raises TypeError."""

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


class TextConfig(NamedTuple):
    """The keys of `config.data` that say which text a language model reads, and as which tokens."""

    source: str  # text: a file or a folder of *.txt, or generated sentences without a path; jsonl; tfds:NAME
    path: str  # the file, or the folder of the next three; with tfds, where TFDS keeps its data
    train_path: str  # a file or folder in `path`, or a split of TFDS; empty: `path` itself, or "train"
    validation_path: str  # the same; empty: the share `held_out` of the training text
    test_path: str  # the same; empty: the share `held_out_test` of the training text
    held_out: float  # the share for validation: the end of one text, or whole documents, drawn
    held_out_test: float  # the share for the test; 0: none
    key: str  # of a JSON line or a TFDS example: the key of its text
    tokenizer: str  # characters, bytes; pieces: unigram, bpe
    vocabulary: int  # of pieces
    seed: int  # of the documents that are drawn, and of generated sentences


def require_buckets(buckets: Any) -> None:
    """Raise UserError where `config.data.buckets` are no lengths, shortest first."""
    are_lengths = isinstance(buckets, tuple) and all(type(length) is int and length > 0 for length in buckets)
    if not buckets or not are_lengths or list(buckets) != sorted(set(buckets)):
        raise UserError(f"config.data.buckets={buckets!r}: needs lengths in rising order, such as (8, 16).")
