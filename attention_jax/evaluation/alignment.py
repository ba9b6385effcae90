"""How attention aligns: against true word alignments, and by its shape alone."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

Weights = Sequence[Float[np.ndarray, "target source"]]
Alignments = Sequence[Sequence[Sequence[int]]]  # of sentence i and target word t, its source words


def alignment_error_rate(weights: Weights, alignments: Alignments) -> float:
    """AER = 1 − 2 |A ∩ T| / (|A| + |T|) of the strongest links A against the true ones T (Och & Ney 2003, eq. 9).

    Every true link is sure. Target words without a true link say nothing and are left out of A.
    """
    shared = found = true = 0
    for matrix, alignment in zip(weights, alignments, strict=True):
        for row, links in zip(matrix, alignment, strict=False):
            if links:
                shared += int(np.argmax(row)) in set(links)
                found += 1
                true += len(set(links))
    return 1 - 2 * shared / (found + true)


def coverage(weights: Weights) -> float:
    """The share of source words that some target word looks at most."""
    return float(np.mean([len(set(matrix.argmax(-1))) / matrix.shape[-1] for matrix in weights]))


def entropy(weights: Weights) -> float:
    """−Σ_s α_s ln α_s in nats, the mean over target words: 0 looks at one word, ln S at all alike."""
    rows = [-np.sum(matrix * np.log(np.maximum(matrix, 1e-30)), axis=-1) for matrix in weights]
    return float(np.mean(np.concatenate(rows)))


def agreement(weights: Weights, alignments: Alignments) -> float:
    """The share of target words whose strongest weight is on one of their true source words.

    Words without a true source word are left out.
    """
    hits = [
        int(np.argmax(row)) in set(true)
        for matrix, alignment in zip(weights, alignments, strict=True)
        for row, true in zip(matrix, alignment, strict=False)
        if len(true)
    ]
    return float(np.mean(hits))


def monotonicity(weights: Weights) -> float:
    """The share of neighbouring target words whose strongest source words are in order (or the same)."""
    steps = np.concatenate([np.diff(matrix.argmax(-1)) for matrix in weights])
    return float(np.mean(steps >= 0))
