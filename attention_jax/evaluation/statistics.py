"""Means with their intervals."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def mean_interval(values: Sequence[float] | np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """The mean and Student's t interval of independent values: x̄ ± t_{n−1} s / √n.

    One value alone has no interval: its ends are NaN.
    """
    from scipy import stats

    values = np.asarray(values, np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return mean, float(mean - half), float(mean + half)


def summarize(members: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Means of what the members (one a seed) measured, and 95% intervals where there are two or more, both nested.

    What is not a number is taken from the first member.
    """
    means: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for name, value in members[0].items():
        values = [member[name] for member in members]
        if isinstance(value, Mapping):
            means[name], intervals[name] = summarize(values)
        elif not isinstance(value, (int, float)):
            means[name] = value
        else:
            means[name], *ends = mean_interval(values)
            if len(members) > 1:
                intervals[name] = ends
    return means, {name: found for name, found in intervals.items() if found}
