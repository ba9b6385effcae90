"""Do two measures put things in the same order?"""

import numpy as np
from jaxtyping import Float


def spearman(one: Float[np.ndarray, " n"], other: Float[np.ndarray, " n"]) -> float:
    """ρ = the correlation of ranks, those of equal values being their mean (Spearman 1904); NaN where all are equal."""
    from scipy.stats import rankdata

    ranks = np.stack([rankdata(one), rankdata(other)])
    ranks -= ranks.mean(-1, keepdims=True)
    length = np.sqrt(np.square(ranks).sum(-1).prod())
    return float(ranks.prod(0).sum() / length) if length else float("nan")
