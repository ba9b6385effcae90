"""Means with their intervals."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from attention_jax.evaluation.metrics import find

MANY = 30  # values, from which on the bootstrap's intervals cover what they say
RESAMPLES = 2000


def mean_interval(values: Sequence[float] | np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """The mean and an interval of independent values: Student's t for fewer than 30, a percentile bootstrap above.

    x̄ ± t_{n−1} s / √n, or the quantiles of the means of 2,000 resamples (Efron & Tibshirani 1993, §13.3). A
    percentile bootstrap of three values would cover 74%, not 95%. One value alone has no interval: its ends are NaN.
    """
    values = np.asarray(values, np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return mean, math.nan, math.nan
    if len(values) < MANY:
        half = _t_quantile(level, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
        return mean, float(mean - half), float(mean + half)
    means = resampled_sums(values[:, None], RESAMPLES)[:, 0] / len(values)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return mean, float(low), float(high)


def metric_interval(name: str, values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """The mean and interval of a metric, never beyond its bounds where the mean is within them.

    On the logarithm where the metric's row says so, exp of the mean logarithm and of its interval's ends: the mean
    perplexity is that of the mean loss.
    """
    if (row := find(name)) is None:
        return mean_interval(values)
    mean, *ends = np.exp(mean_interval(np.log(values))).tolist() if row.is_log else mean_interval(values)
    low, high = np.clip(ends, min(row.low, mean), max(row.high, mean)).tolist()
    return mean, low, high


def perplexity(loss: float) -> float:
    """exp(loss), with infinity for a loss that is too large for a float."""
    with np.errstate(over="ignore"):
        return float(np.exp(np.float64(loss)))


def resampled_sums(rows: Float[np.ndarray, "n d"], resamples: int) -> Float[np.ndarray, "resamples d"]:
    """The sums of `resamples` draws of n rows with replacement; the draws depend on n alone."""
    return _counts(len(rows), resamples) @ rows


@functools.lru_cache(maxsize=2)
def _counts(n: int, resamples: int) -> Float[np.ndarray, "resamples n"]:
    """How often each of n rows is drawn."""
    generator = np.random.default_rng(n)
    drawn = (generator.integers(n, size=n) for _ in range(resamples))
    return np.stack([np.bincount(row, minlength=n) for row in drawn]).astype(np.float64)


def two_level_interval(
    values: Sequence[float], of_resamples: Float[np.ndarray, " r"], level: float = 0.95
) -> tuple[float, float, float]:
    """The mean over seeds of a score of sentences, with an interval over both: x̄ ± √(h_s² + h_r²).

    h_s is the half-width over the seeds (Student's t), h_r the normal one of the mean score over resamples of the
    sentences; half-widths add in squares (Zou & Donner 2008, eq. 5). Variation by seed and sentence
    together is in both, so that the interval covers rather more than it says. One seed has the interval over sentences
    alone.
    """
    mean, seeds = float(np.mean(values)), 0.0
    if len(values) > 1:
        seeds = _t_quantile(level, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = math.hypot(seeds, _t_quantile(level, math.inf) * np.std(of_resamples, ddof=1))
    return mean, mean - half, mean + half


def summarize(results: Sequence[Mapping[str, Any]], prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Means over results, one a seed, and 95% intervals where there are two or more; both are nested as these are.

    What is not a number is taken from the first result. `prefix` stands before metrics' names.
    """
    means: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for name, value in results[0].items():
        values = [result[name] for result in results]
        if isinstance(value, Mapping):
            means[name], intervals[name] = summarize(values, f"{prefix}{name}.")
        elif not isinstance(value, (int, float)):
            means[name] = value
        else:
            means[name], *ends = metric_interval(f"{prefix}{name}", values)
            if len(results) > 1:
                intervals[name] = ends
    return means, {name: found for name, found in intervals.items() if found}


def over_seeds(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A run's result from one result a seed: that of its only seed, or means with `ci95` and all of them as `members`.

    `members` are in the order of the run's `seeds`.
    """
    if len(results) == 1:
        return dict(results[0])
    means, intervals = summarize(results)
    return {**means, "ci95": intervals, "members": list(results)}


def fitted_powers(
    sizes: Mapping[str, Sequence[float]], values: Sequence[float], level: float = 0.95
) -> dict[str, list[float]]:
    """Exponents p of value = c Π size^p by least squares on logarithms, each with its interval (Student's t).

    {"n": [p, low, high], …}. A fit without freedom has no interval: its ends are NaN. Raises ValueError for a size that
    does not vary, whose exponent nothing tells.
    """
    for name, size in sizes.items():
        if len(set(size)) < 2:
            raise ValueError(f"{name} is {size[0]} everywhere: no exponent can be fitted to it.")
    columns = np.log(np.array([*sizes.values()], np.float64).T)
    design = np.concatenate([np.ones((len(columns), 1)), columns], axis=1)
    target = np.log(np.asarray(values, np.float64))
    solution = np.linalg.lstsq(design, target, rcond=None)[0]
    freedom = len(target) - design.shape[1]
    spread = np.sum((target - design @ solution) ** 2) / freedom if freedom > 0 else math.nan
    halves = _t_quantile(level, freedom) * np.sqrt(spread * np.diag(np.linalg.pinv(design.T @ design)))
    ends = zip(solution[1:], halves[1:], strict=True)
    return {name: [float(p), float(p - half), float(p + half)] for name, (p, half) in zip(sizes, ends, strict=True)}


@functools.cache
def _t_quantile(level: float, freedom: float) -> float:
    from scipy import stats

    return float(stats.t.ppf((1 + level) / 2, freedom))
