"""Splits by source sentence: one sentence with several translations is never on both sides."""

from collections.abc import Callable, Sequence

import numpy as np

from attention_jax.data.sources import Pair
from attention_jax.data.tokenizers import split_words
from attention_jax.errors import UserError

Splits = dict[str, list[Pair]]


def by_source(pairs: Sequence[Pair], train: int, validation: int, test: int, seed: int) -> Splits:
    """`validation` and `test` source sentences drawn at random; the rest, or `train` of them, to train on."""
    keys = list(dict.fromkeys(map(sentence_key, pairs)))
    if validation + test >= len(keys):
        raise UserError(
            f"{len(keys):,} different source sentences cannot spare {validation:,} for validation and {test:,} "
            "for test. Lower --config.data.validation and --config.data.test."
        )
    order = np.random.default_rng(seed).permutation(len(keys))
    names = np.full(len(keys), "train", dtype=object)
    names[order[:validation]] = "validation"
    names[order[validation : validation + test]] = "test"
    if train:
        names[order[validation + test + train :]] = ""
    home = dict(zip(keys, names, strict=True))
    return _collect(pairs, [home[sentence_key(pair)] for pair in pairs])


def in_order(pairs: Sequence[Pair], train: int, validation: int, test: int, seed: int) -> Splits:
    """The first `train` pairs; then, among sentences not seen before, the next `validation` and `test` pairs."""
    del seed
    home: dict[str, str] = {}
    left = {"train": train, "validation": validation, "test": test}
    names = []
    for pair in pairs:
        open_split = next((name for name, count in left.items() if count > 0), "")
        name = open_split if home.setdefault(sentence_key(pair), open_split) == open_split else ""
        if name:
            left[name] -= 1
        names.append(name)
    if any(left.values()):
        raise UserError(
            f"{len(pairs):,} pairs are too few for {train:,} to train on, {validation:,} validation and {test:,} test. "
            "Lower --config.data.train, --config.data.validation or --config.data.test."
        )
    return _collect(pairs, names)


SPLITTERS: dict[str, Callable[[Sequence[Pair], int, int, int, int], Splits]] = {
    "by_source": by_source,
    "in_order": in_order,
}


def sentence_key(pair: Pair) -> str:
    """Two sources are the same sentence if they are the same words."""
    return " ".join(split_words(pair.source))


def _collect(pairs: Sequence[Pair], names: Sequence[str]) -> Splits:
    splits: Splits = {"train": [], "validation": [], "test": []}
    for pair, name in zip(pairs, names, strict=True):
        if name:
            splits[name].append(pair)
    return splits
