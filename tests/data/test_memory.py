"""A corpus a hundred times as large takes no more of the host's memory, imported or trained on."""

import json
import os
import subprocess
import sys

import pytest
from support import ROOT

PROGRAM = """
import json, sys
from pathlib import Path
from attention_jax.data.batching import TrainingBatches, split_buckets
from attention_jax.data.config import DataConfig
from attention_jax.data.importing import load_or_import
from configs.nmt import CORPORA

path = Path(sys.argv[1])
data = DataConfig(**CORPORA["tsv"])._replace(path=str(path), buckets=(8, 16), max_length=16, on_device=False)
split = load_or_import(path.with_suffix(".data"), data).splits["train"]
batches = TrainingBatches(split_buckets(split, data.batch_tokens), 16)
for step in range(0, batches.steps_per_epoch, max(batches.steps_per_epoch // 100, 1)):
    call = batches.take(0, step, step + 16)
    split_buckets(split, data.batch_tokens)[call.bucket].rows(call.rows)
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
own, peak = (int(status[name].split()[0]) // 1024 for name in ("RssAnon", "VmHWM"))
print(json.dumps([len(split.source), own, peak]))
"""


def peak_memory(folder, pairs):
    """MiB that a process held of its own, and at most, files mapped included, after `pairs` pairs and their batches."""
    path = folder / f"{pairs}.txt"
    with open(path, "w", encoding="utf-8") as file:
        for i in range(pairs):
            file.write(f"w{i % 997} x{i % 1009} y{i % 1013} z{i % 89}\t{'v ' * (i % 11)}u{i % 991} t{i % 983}\n")
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, cwd=ROOT, check=True)
    imported, own, peak = json.loads(done.stdout)
    assert imported > 0.8 * pairs - 2000
    return own, peak


@pytest.mark.slow
def test_memory_is_flat_from_ten_thousand_to_four_hundred_thousand_pairs(tmp_path):
    small, large = (peak_memory(tmp_path, pairs) for pairs in (10_000, 400_000))
    files = sum(path.stat().st_size for path in (tmp_path / "400000.data").glob("train.*.npy")) / 2**20
    assert large[0] < small[0] + 10
    assert large[1] < small[1] + 10 + files  # which the kernel gives up when it needs the room


TEXT_PROGRAM = """
import json, sys
from pathlib import Path
from attention_jax.data.packing import Packed
from attention_jax.data.text_importing import load_text
from attention_jax.data.windows import Windows
from texts import BASE

path, tokenizer = Path(sys.argv[1]), sys.argv[2]
source = "jsonl" if path.suffix == ".jsonl" else "text"
config = BASE._replace(source=source, path=str(path), tokenizer=tokenizer, vocabulary=320)
split = load_text(path.with_suffix("." + tokenizer), config).splits["train"]
for batches in (Windows.of(split, 64, 8), Packed.of(split, 64, 8)):
    epoch = len(split.tokens) // (64 * 8)  # steps
    for step in range(0, epoch, max(epoch // 20, 1)):
        batches.rows(0, step, step + 4)
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
own, peak = (int(status[name].split()[0]) // 1024 for name in ("RssAnon", "VmHWM"))
print(json.dumps([split.counts.bytes, own, peak]))
"""


def peak_memory_of_text(folder, ending, tokenizer, lines):
    """MiB that a process held of its own, and at most, after a text of about 35 bytes a line and its batches."""
    path = folder / f"{lines}.{ending}"
    with open(path, "w", encoding="utf-8") as file:
        for first in range(0, lines, 10):
            some = "".join(f"w{i % 997} é{i % 1009} y{i % 1013} the end of {i}\n" for i in range(first, first + 10))
            file.write(json.dumps({"text": some}) + "\n" if ending == "jsonl" else some)
    command = [sys.executable, "-c", TEXT_PROGRAM, path, tokenizer]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, env=environment)
    imported, own, peak = json.loads(done.stdout)
    assert imported > 0.8 * 30 * lines
    return own, peak


@pytest.mark.parametrize(
    ("ending", "tokenizer", "few", "many"),
    [
        ("txt", "characters", 120_000, 1_200_000),
        ("jsonl", "bytes", 60_000, 600_000),
        pytest.param(
            "txt", "bpe", 300_000, 1_500_000, marks=pytest.mark.slow
        ),  # from 200,000 on a sample is learnt from
    ],
)
def test_memory_is_flat_from_a_small_text_to_a_large_one(tmp_path, ending, tokenizer, few, many):
    small, large = (peak_memory_of_text(tmp_path, ending, tokenizer, lines) for lines in (few, many))
    files = sum(path.stat().st_size for path in (tmp_path / f"{many}.{tokenizer}").glob("train*.npy")) / 2**20
    assert files > 15
    assert large[0] < small[0] + 16
    assert large[1] < small[1] + 16 + files  # which the kernel gives up when it needs the room
