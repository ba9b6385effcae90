"""Means with their intervals."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats


def mean_interval(values: Sequence[float] | np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """The mean and Student's t interval of independent values: x̄ ± t_{n−1} s / √n.

    One value alone has no interval: its ends are NaN.
    """
    values = np.asarray(values, np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return mean, float(mean - half), float(mean + half)
