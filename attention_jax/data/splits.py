"""Splits by source sentence: a sentence with several translations is never in two splits.

`taken` are the keys of sentences in the splits' own files; none of them is drawn.
"""

import hashlib
import heapq
from collections.abc import Callable, Collection, Iterator

from attention_jax.data.sources import Pair
from attention_jax.data.tokenizers import split_words
from attention_jax.errors import UserError

REST = "rest"  # pairs of the file that are in no split
SHARE = -1  # as a size: a tenth of the different source sentences, at most `MOST`
MOST = 1000
Assigned = Iterator[tuple[str, Pair]]
Read = Callable[[], Iterator[Pair]]


def by_source(read: Read, train: int, validation: int, test: int, seed: int, taken: Collection[str] = ()) -> Assigned:
    """`validation` and `test` source sentences drawn at random; the rest, or `train` of them, for training.

    A sentence is drawn by a hash of the seed and its words: those with the smallest hashes are held out. `read` is
    called twice.
    """
    wanted = validation + test + max(train, 1)
    keys = (sentence_key(pair) for pair in read())
    drawn = _smallest((_hash(key, seed) for key in keys if key not in taken), wanted)
    if drawn and len(drawn) < wanted:
        raise UserError(
            f"{len(drawn):,} different source sentences{_outside(taken)} are too few for config.data.validation="
            f"{validation}, config.data.test={test} and {max(train, 1):,} to train on. Lower one of them."
        )
    held_out = dict.fromkeys(drawn[:validation], "validation") | dict.fromkeys(
        drawn[validation : validation + test], "test"
    )
    last = drawn[-1] if drawn and train else 2**64
    for pair in read():
        hashed = _hash(sentence_key(pair), seed)
        yield held_out.get(hashed, "train" if hashed <= last else REST), pair


def in_order(read: Read, train: int, validation: int, test: int, seed: int, taken: Collection[str] = ()) -> Assigned:
    """The first `train` pairs; then, among sentences not seen before, the next `validation` and `test` pairs."""
    del seed
    home: dict[str, str] = {}
    left = {"train": train, "validation": validation, "test": test}
    count = 0
    for pair in read():
        count += 1
        if taken and sentence_key(pair) in taken:
            yield "train" if left["train"] else REST, pair  # the split it would be in; the caller leaves it out
            continue
        name = next((name for name in left if left[name] > 0), REST)
        if name != REST and home.setdefault(sentence_key(pair), name) != name:
            name = REST
        if name != REST:
            left[name] -= 1
        yield name, pair
    if any(left.values()):
        raise UserError(
            f"{count:,} pairs{_outside(taken)} are too few for config.data.train={train}, config.data.validation="
            f"{validation} and config.data.test={test}. Lower one of them."
        )


SPLITTERS: dict[str, Callable[[Read, int, int, int, int, Collection[str]], Assigned]] = {
    "by_source": by_source,
    "in_order": in_order,
}


def sizes_of(read: Read, validation: int, test: int, taken: Collection[str] = ()) -> tuple[int, int]:
    """`validation` and `test` as numbers of sentences: `SHARE` is a tenth of the sentences not `taken`, 1 to 1,000."""
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
    """A source's words: two sources with the same words are the same sentence."""
    return " ".join(split_words(pair.source))


def _outside(taken: Collection[str]) -> str:
    return " outside the held-out file" if taken else ""


def _hash(key: str, seed: int) -> int:
    digest = hashlib.blake2b(key.encode(), digest_size=8, key=str(seed).encode())
    return int.from_bytes(digest.digest())


def _smallest(numbers: Iterator[int], count: int) -> list[int]:
    """The `count` smallest of the different numbers, in order."""
    heap: list[int] = []  # negated numbers: the largest that is kept is first
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
