"""Does a model hold beyond the lengths that it was trained on? Curves against length, as numbers."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def area(lengths: Sequence[float], values: Sequence[float]) -> float:
    """∫ value d length / (last − first), by trapezoids: the mean height of the curve; a lone value is its own."""
    if len(lengths) == 1:
        return float(values[0])
    return float(np.trapezoid(values, lengths) / (lengths[-1] - lengths[0]))


def reciprocal_ranks(scores: Float[np.ndarray, "settings groups *rest"]) -> Float[np.ndarray, "settings *rest"]:
    """The mean over groups of 1 / rank, the highest score first; equal scores share the mean of their ranks."""
    from scipy.stats import rankdata

    return np.mean(1 / rankdata(-np.asarray(scores), axis=0, method="average"), axis=1)


def kendall(scores: Sequence[float], others: Sequence[float]) -> float:
    """Kendall's τ_b: 1 where two lists of scores order things alike, −1 where in reverse."""
    from scipy.stats import kendalltau

    return float(kendalltau(scores, others).statistic)
