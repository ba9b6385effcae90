"""What `config.data` holds."""

from typing import NamedTuple


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


class TextConfig(NamedTuple):
    """Which text a language model reads, and as which tokens: these keys of `config.data`."""

    source: str  # text: a file or a folder of *.txt, generated sentences without a path; jsonl; tfds:NAME
    path: str  # of the file, or of the folder of what the next three name; of TFDS, where it keeps its data
    train_path: str  # a file or folder in `path`, or a split of TFDS; empty: `path` itself, or "train"
    validation_path: str  # the same; empty: `held_out` of what is there to train on
    test_path: str  # the same; empty: `held_out_test` of it
    held_out: float  # share to validate on: the last of one text, or whole documents drawn
    held_out_test: float  # share to test on; 0: none
    key: str  # of a JSON line or of an example of TFDS: where its text is
    tokenizer: str  # characters, bytes; pieces: unigram, bpe
    vocabulary: int  # of pieces
    seed: int  # of the documents that are drawn, and of generated sentences
