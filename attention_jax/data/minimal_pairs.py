"""Sentences of the embedded corpus's grammar that differ in one word."""

from collections.abc import Iterator

from attention_jax.data.grammar import sentence_pairs
from attention_jax.data.sources import Pair
from attention_jax.data.tokenizers import split_words

MOST = 10**6  # sentences that are drawn in search of them


def minimal_pairs(seed: int, count: int) -> Iterator[tuple[Pair, Pair]]:
    """`count` couples of sentences with their translations, the same for the same seed; no sentence is in two.

    The English of a couple differs in one word, which is not the mark at the end, and the French differs.
    """
    waiting: dict[tuple, Pair] = {}
    used: set[str] = set()
    found = 0
    for pair in sentence_pairs(seed, MOST):
        words = split_words(pair.source)
        blanked = [(index, *words[:index], *words[index + 1 :]) for index in range(len(words) - 1)]
        for key in blanked:
            other = waiting.setdefault(key, pair)
            if other is not pair and other.source not in used and other.target != pair.target:
                used |= {pair.source, other.source}
                yield other, pair
                found += 1
                break
        if found == count:
            return
