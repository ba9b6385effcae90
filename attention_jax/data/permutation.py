"""A shuffle without a list: the index that a keyed permutation of n indices gives for index i."""

import numpy as np
from jaxtyping import Int

ROUNDS = 6


def permuted(indices: Int[np.ndarray, " m"], size: int, key: tuple[int, ...]) -> Int[np.ndarray, " m"]:
    """π(indices) for a permutation π of 0 … size − 1 that depends on `key` alone; memory grows with m, not with `size`.

    A Feistel network over the next even power of two (Luby & Rackoff 1988), repeated until the result is less than
    `size` ("cycle walking": Black & Rogaway 2002, §4). For `size` < 64 some permutations come up to half as often again
    as others.
    """
    half = max((max(size - 1, 1).bit_length() + 1) // 2, 1)
    round_keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64)
    found = _encrypted(indices.astype(np.uint64), half, round_keys)
    while (is_outside := found >= size).any():
        found[is_outside] = _encrypted(found[is_outside], half, round_keys)
    return found.astype(np.int64)


def _encrypted(block: np.ndarray, half: int, round_keys: np.ndarray) -> np.ndarray:
    low_bits = np.uint64((1 << half) - 1)
    left, right = block >> np.uint64(half), block & low_bits
    for round_key in round_keys:
        left, right = right, left ^ (_mixed(right ^ round_key) & low_bits)
    return left << np.uint64(half) | right


def _mixed(bits: np.ndarray) -> np.ndarray:
    """The 64-bit finaliser of SplitMix (Steele et al. 2014, §5)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
