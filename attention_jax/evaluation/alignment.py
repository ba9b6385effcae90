"""How attention aligns: against true word alignments, and by its shape alone."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def agreement(
    weights: Sequence[Float[np.ndarray, "target source"]], alignments: Sequence[Sequence[Sequence[int]]]
) -> float:
    """The share of target words whose strongest weight is on one of their true source words.

    `alignments[i][t]` holds the source words of target word t of sentence i; words without any are left out.
    """
    hits = [
        int(np.argmax(row)) in set(true)
        for matrix, alignment in zip(weights, alignments, strict=True)
        for row, true in zip(matrix, alignment, strict=False)
        if len(true)
    ]
    return float(np.mean(hits))


def monotonicity(weights: Sequence[Float[np.ndarray, "target source"]]) -> float:
    """The share of neighbouring target words whose strongest source words are in order (or the same)."""
    steps = np.concatenate([np.diff(matrix.argmax(-1)) for matrix in weights])
    return float(np.mean(steps >= 0))
