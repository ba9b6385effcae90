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
