"""Corpora of many sizes: the host's memory and time, imported and read as training reads them."""

import time
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.data.batching import TrainingBatches, split_buckets
from attention_jax.data.config import DataConfig
from attention_jax.data.importing import load_or_import
from attention_jax.tasks.benchmark.memory import alone, own_megabytes
from attention_jax.tasks.benchmark.rounds import Growth, Row
from attention_jax.tasks.benchmark.tools import Tools

READ = 100  # batches


def measure(config: ConfigDict, tools: Tools) -> Iterator[Row | Growth]:
    """Memory and seconds of every size of `config.corpora.pairs`, each in a process of its own."""
    asked = config.corpora
    memory, seconds = [], []
    for pairs in asked.pairs:
        path = tools.folder / f"{pairs}.txt"
        _write(path, pairs)
        found = alone(import_and_read, path, asked.data.to_dict())
        path.unlink()
        memory.append(found[0])
        seconds.append(found[1])
        yield Row("corpora", f"{pairs:,} pairs imported and read, most memory of its own", "MB", [found[0]])
    yield Growth("corpora", "memory of importing and reading: MB", "pairs", [*asked.pairs], memory, 0)
    yield Growth("corpora", "seconds of importing and reading", "pairs", [*asked.pairs], seconds, 1)


def import_and_read(path: Path, data: dict) -> tuple[float, float]:
    """MB that this process held of its own at most, above what it held at its start, and its seconds."""
    started = time.perf_counter()
    config = DataConfig(**data)._replace(path=str(path), on_device=False)
    folder = path.with_suffix(".data")

    def work():
        split = load_or_import(folder, config).splits["train"]
        buckets = split_buckets(split, config.batch_tokens)
        batches = TrainingBatches(buckets, 1)
        for step in range(0, batches.steps_per_epoch, max(batches.steps_per_epoch // READ, 1)):
            call = batches.take(0, step, step + 1)
            buckets[call.bucket].rows(call.rows)

    return own_megabytes(work), time.perf_counter() - started


def _write(path: Path, pairs: int) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for i in range(pairs):
            file.write(f"w{i % 997} x{i % 1009} y{i % 1013} z{i % 89}\t{'v ' * (i % 11)}u{i % 991} t{i % 983}\n")
