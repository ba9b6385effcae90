"""Splits by source sentence: one sentence with several translations is never on both sides.

`taken` are the keys of sentences that files of their own hold out: none of them is drawn.
"""

import hashlib
import heapq
from collections.abc import Callable, Collection, Iterator

from attention_jax.data.sources import Pair
from attention_jax.data.tokenizers import split_words
from attention_jax.errors import UserError

REST = "rest"  # pairs of the file that are in no split
SHARE = -1  # as a size: a tenth of the different source sentences, at most MOST
MOST = 1000
Assigned = Iterator[tuple[str, Pair]]
Read = Callable[[], Iterator[Pair]]


def by_source(read: Read, train: int, validation: int, test: int, seed: int, taken: Collection[str] = ()) -> Assigned:
    """`validation` and `test` source sentences drawn at random; the rest, or `train` of them, to train on.

    A sentence is drawn by a hash of the seed and its words: the smallest are held out. `read` is called twice.
    """
    wanted = validation + test + max(train, 1)
    keys = (sentence_key(pair) for pair in read())
    drawn = _smallest((_hash(key, seed) for key in keys if key not in taken), wanted)
    if drawn and len(drawn) < wanted:
        raise UserError(
            f"{len(drawn):,} different source sentences{_outside(taken)} cannot spare {validation:,} for validation "
            f"and {test:,} for test, with {max(train, 1):,} to train on. Lower --config.data.validation, test or train."
        )
    held_out = dict.fromkeys(drawn[:validation], "validation") | dict.fromkeys(
        drawn[validation : validation + test], "test"
    )
    last = drawn[-1] if drawn and train else 2**64
    for pair in read():
        place = _hash(sentence_key(pair), seed)
        yield held_out.get(place, "train" if place <= last else REST), pair


def in_order(read: Read, train: int, validation: int, test: int, seed: int, taken: Collection[str] = ()) -> Assigned:
    """The first `train` pairs; then, among sentences not seen before, the next `validation` and `test` pairs."""
    del seed
    home: dict[str, str] = {}
    left = {"train": train, "validation": validation, "test": test}
    count = 0
    for pair in read():
        count += 1
        if sentence_key(pair) in taken:
            yield "train" if left["train"] else REST, pair  # where it would be, for who leaves it out
            continue
        name = next((name for name in left if left[name] > 0), REST)
        if name != REST and home.setdefault(sentence_key(pair), name) != name:
            name = REST
        if name != REST:
            left[name] -= 1
        yield name, pair
    if any(left.values()):
        raise UserError(
            f"{count:,} pairs are too few for {train:,} to train on, {validation:,} validation and {test:,} test"
            f"{_outside(taken)}. Lower --config.data.train, --config.data.validation or --config.data.test."
        )


SPLITTERS: dict[str, Callable[[Read, int, int, int, int, Collection[str]], Assigned]] = {
    "by_source": by_source,
    "in_order": in_order,
}


def sizes_of(read: Read, validation: int, test: int, taken: Collection[str] = ()) -> tuple[int, int]:
    """`validation` and `test` as numbers of sentences: what is `SHARE` is a tenth of those not `taken`, 1 to 1,000."""
    if SHARE not in (validation, test):
        return validation, test
    seen: set[str] = set()
    for pair in read():
        seen.add(sentence_key(pair))
        if len(seen) - len(taken) >= 10 * MOST:
            break
    share = min(max(len(seen.difference(taken)) // 10, 1), MOST)
    return (share if validation == SHARE else validation), (share if test == SHARE else test)


def sentence_key(pair: Pair) -> str:
    """Two sources are the same sentence if they are the same words."""
    return " ".join(split_words(pair.source))


def _outside(taken: Collection[str]) -> str:
    return " outside the held-out file" if taken else ""


def _hash(key: str, seed: int) -> int:
    digest = hashlib.blake2b(key.encode(), digest_size=8, key=str(seed).encode())
    return int.from_bytes(digest.digest())


def _smallest(numbers: Iterator[int], count: int) -> list[int]:
    """The `count` smallest different numbers, in order."""
    heap: list[int] = []  # negated: the largest kept is first
    kept: set[int] = set()
    for number in numbers:
        if number in kept or (len(heap) == count and number >= -heap[0]):
            continue
        kept.add(number)
        if len(heap) < count:
            heapq.heappush(heap, -number)
        else:
            kept.remove(-heapq.heapreplace(heap, -number))
    return sorted(kept)
