"""How attention aligns: against true word alignments, and by its shape alone."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

Weights = Sequence[Float[np.ndarray, "target source"]]
Alignments = Sequence[Sequence[Sequence[int]]]  # of sentence i and target word t, its source words


def alignment_error_rate(weights: Weights, alignments: Alignments) -> float:
    """AER = 1 − 2 |A ∩ T| / (|A| + |T|) of the strongest links A against the true ones T (Och & Ney 2003, eq. 9).

    Every true link is sure. Target words without a true link say nothing and are left out of A, and so is a
    word that looks nowhere. NaN where no word has a true link.
    """
    shared = found = true = 0
    for matrix, alignment in zip(weights, alignments, strict=True):
        for row, links in zip(matrix, alignment, strict=False):
            if links:
                shared += row.any() and int(np.argmax(row)) in set(links)
                found += bool(row.any())
                true += len(set(links))
    return float(1 - 2 * shared / (found + true)) if true else math.nan


def coverage(weights: Weights) -> float:
    """The share of source words that some target word looks at most; the last column, the end, is left out."""
    return float(np.mean([_looked_at(matrix) / max(matrix.shape[-1] - 1, 1) for matrix in weights]))


def entropy(weights: Weights) -> float:
    """−Σ_s |α_s| ln |α_s| in nats, the mean over target words: 0 looks at one word, ln S at all alike.

    Words that look nowhere are left out.
    """
    sizes = [np.abs(matrix[matrix.any(-1)]) for matrix in weights]
    rows = np.concatenate([-np.sum(size * np.log(np.maximum(size, 1e-30)), axis=-1) for size in sizes])
    return float(np.mean(rows)) if len(rows) else float("nan")


def agreement(weights: Weights, alignments: Alignments) -> float:
    """The share of target words whose strongest weight is on one of their true source words.

    Words without a true source word are left out.
    """
    hits = [
        bool(row.any()) and int(np.argmax(row)) in set(true)
        for matrix, alignment in zip(weights, alignments, strict=True)
        for row, true in zip(matrix, alignment, strict=False)
        if len(true)
    ]
    return float(np.mean(hits))


def monotonicity(weights: Weights) -> float:
    """The share of neighbouring target words whose strongest source words are in order (or the same)."""
    steps = np.concatenate([np.diff(matrix[matrix.any(-1)].argmax(-1)) for matrix in weights])
    return float(np.mean(steps >= 0)) if len(steps) else float("nan")


def _looked_at(matrix: np.ndarray) -> int:
    strongest = matrix[matrix.any(-1)].argmax(-1)
    return len(set(strongest[strongest < matrix.shape[-1] - 1].tolist()))
