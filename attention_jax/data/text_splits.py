"""Splits of a text: files of their own, the last share of one text, or documents that are drawn."""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from attention_jax.data.config import TextConfig
from attention_jax.data.permutation import permuted
from attention_jax.data.text_sources import Chunk, files_of, has_documents, kind_of, read_text
from attention_jax.data.tfds_splits import overlap
from attention_jax.errors import UserError

HELD_OUT = ("validation", "test")
SPLITS = ("train", *HELD_OUT)
DRAWN_AT_ONCE = 2**16

Assigned = Iterator[tuple[str, Chunk]]
Read = Callable[[], Iterator[Chunk]]


def divided_text(config: TextConfig) -> Assigned:
    """Every chunk of a text with its split; a whole document is in one split.

    Raises UserError for too little text, and for two splits that read the same file or examples.
    """
    _require_apart(config)
    for name in HELD_OUT:
        if getattr(config, f"{name}_path"):
            yield from ((name, chunk) for chunk in read_text(config, name))
    read = functools.partial(read_text, config, "train")
    shares = shares_of(config)
    if not any(shares.values()):
        yield from (("train", chunk) for chunk in read())
    elif has_documents(config):
        yield from whole_documents(read, shares, config.seed)
    else:
        yield from last_shares(read, shares)


def shares_of(config: TextConfig) -> dict[str, float]:
    """The share of the training text that each split holds out: 0 for a split with files of its own."""
    return {
        "validation": 0.0 if config.validation_path else config.held_out,
        "test": 0.0 if config.test_path else config.held_out_test,
    }


def last_shares(read: Read, shares: dict[str, float]) -> Assigned:
    """One running text, cut by characters into training, validation and test. `read` is called twice."""
    total = sum(len(chunk.text) for chunk in read())
    ends = {
        "train": round(total * (1 - (shares["validation"] + shares["test"]))),
        "validation": round(total * (1 - shares["test"])),
        "test": total,
    }
    if ends["train"] == 0 or any(share and round(total * share) == 0 for share in shares.values()):
        raise _too_few(f"a text of {total:,} characters", shares)
    offset = 0
    for chunk in read():
        text = chunk.text
        while text:
            name, end = next((name, end) for name, end in ends.items() if offset < end)
            yield name, Chunk(text[: end - offset], is_last=False)
            offset, text = min(offset + len(text), end), text[end - offset :]


def whole_documents(read: Read, shares: dict[str, float], seed: int) -> Assigned:
    """Documents drawn by a keyed permutation of their indices, at least one for each split. `read` is called twice."""
    count = sum(chunk.is_last for chunk in read())
    sizes = [max(round(count * share), 1) if share else 0 for share in shares.values()]
    if sum(sizes) >= count:
        raise _too_few(f"a text of {count:,} document{'s' * (count != 1)}", shares)
    splits = _drawn(count, sizes, seed)
    name = ""
    for chunk in read():
        name = name or next(splits)
        yield name, chunk
        name = "" if chunk.is_last else name


def _drawn(count: int, sizes: list[int], seed: int) -> Iterator[str]:
    """The split of each document in turn."""
    for first in range(0, count, DRAWN_AT_ONCE):
        indices = permuted(np.arange(first, min(first + DRAWN_AT_ONCE, count)), count, (seed,))
        homes = np.searchsorted(np.cumsum(sizes), indices, side="right")
        yield from ((*HELD_OUT, "train")[home] for home in homes.tolist())


def _too_few(what: str, shares: dict[str, float]) -> UserError:
    keys = {"validation": "held_out", "test": "held_out_test"}
    asked = " and ".join(f"config.data.{keys[name]}={share:g}" for name, share in shares.items() if share)
    return UserError(
        f"config.data.path: {what} is too little for {asked}. Give a longer one, or another with "
        "--config.data.validation_path."
    )


def _require_apart(config: TextConfig) -> None:
    if kind_of(config) == "tfds":
        return _require_different(config)
    seen: dict[Path, str] = {}
    for name in ("train", *(name for name in HELD_OUT if getattr(config, f"{name}_path"))):
        for path in files_of(config, name):
            if (other := seen.setdefault(path.resolve(), name)) != name:
                raise UserError(
                    f"config.data.{name}_path: {path} is in the split {other} too, and splits must not share a file. "
                    "Move it out of the other's folder, or name another."
                )


def _require_different(config: TextConfig) -> None:
    named = {"train_path": config.train_path or "train"}
    named |= {key: getattr(config, key) for key in ("validation_path", "test_path") if getattr(config, key)}
    for (key, split), (other, held_out) in itertools.combinations(named.items(), 2):
        if overlap(split, held_out):
            raise UserError(
                f"config.data.{other}={held_out!r}: may share examples with config.data.{key}={split!r} of "
                f"{config.source}. Name other splits, or slices that do not meet, such as train[10%:] and train[:10%]."
            )
