"""Is a difference more than chance? Tests over seeds, and over sentences, each a two-sided p-value."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from attention_jax.evaluation.statistics import resampled_sums

Values = Sequence[float] | np.ndarray
Score = Callable[[Float[np.ndarray, "... d"]], Float[np.ndarray, "..."]]  # of summed statistics of sentences
EXACT = 16  # differences of which every sign is tried
SHUFFLES = 10_000
RESAMPLES = 1_000


def paired_t(values: Values, baseline: Values) -> float:
    """Student's paired t-test over seeds; NaN for one pair, or where all differ by the same; 1 where none differs."""
    from scipy import stats

    differences = np.asarray(values, np.float64) - np.asarray(baseline)
    if len(differences) < 2:
        return math.nan
    if np.ptp(differences) <= 1e-12 * np.abs(differences).max():
        return math.nan if differences.any() else 1.0
    return float(stats.ttest_1samp(differences, 0).pvalue)


def sign_flip(values: Values, baseline: Values) -> float:
    """The share of sign changes of the differences whose mean is as far from zero (Fisher 1935, §21).

    Exact, all 2ⁿ of them, up to 16 differences; 10,000 drawn above, the true one among them. With n differences it
    cannot be less than 2^(1 − n).
    """
    differences = np.asarray(values, np.float64) - np.asarray(baseline)
    if len(differences) <= EXACT:
        signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    else:
        signs = np.random.default_rng(len(differences)).choice((1, -1), size=(SHUFFLES, len(differences)))
        signs[0] = 1
    means = np.abs(signs @ differences)
    return float(np.mean(means >= means[0] - 1e-12 * np.abs(differences).sum()))


def paired_bootstrap(score: Score, system: Float[np.ndarray, "n d"], baseline: Float[np.ndarray, "n d"]) -> float:
    """Resampled sentences, the same of both: how often |δ*| exceeds its mean by more than the true |δ|.

    p = (#{|δ*| − mean |δ*| ≥ |δ|} + 1) / (B + 1) (Riezler & Maxwell 2005, fig. 2), sacreBLEU's but for ties. It
    counts one tail: where nothing differs it finds a difference at 5% about one time in ten, not in twenty.
    """
    width = system.shape[-1]
    both = resampled_sums(np.concatenate([system, baseline], axis=-1), RESAMPLES)
    differences = np.abs(score(both[:, :width]) - score(both[:, width:]))
    true = abs(float(score(system.sum(0)) - score(baseline.sum(0))))
    return _exceeded(differences - differences.mean(), true)


def approximate_randomization(
    score: Score, system: Float[np.ndarray, "n d"], baseline: Float[np.ndarray, "n d"]
) -> float:
    """Outputs swapped between the systems, sentence by sentence: how often a difference exceeds the true one.

    p = (#{|δ*| ≥ |δ|} + 1) / (R + 1) (Noreen 1989; Riezler & Maxwell 2005, fig. 1).
    """
    true = abs(float(score(system.sum(0)) - score(baseline.sum(0))))
    sums, moved = system.sum(0) + baseline.sum(0), _signs(len(system), SHUFFLES) @ (system - baseline)
    return _exceeded(np.abs(score((sums + moved) / 2) - score((sums - moved) / 2)), true)


@functools.lru_cache(maxsize=2)
def _signs(n: int, shuffles: int) -> Float[np.ndarray, "shuffles n"]:
    """Which of n sentences keep their systems (1) and which swap them (−1)."""
    return 1.0 - 2.0 * np.random.default_rng(n).integers(2, size=(shuffles, n), dtype=np.int8)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of one table, adjusted so that the chance of any false finding is kept (Holm 1979).

    p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) p_(j)). NaN stays, and is not counted.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted, highest = [math.nan] * len(p_values), 0.0
    for rank, (p, index) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[index] = highest
    return adjusted


def seeds_needed(comparisons: int, level: float = 0.05) -> int:
    """The fewest seeds with which a sign-flip test can find one of so many comparisons at `level` after Holm."""
    return 1 + math.ceil(math.log2(comparisons / level))


def _exceeded(draws: Float[np.ndarray, " r"], true: float) -> float:
    return float((np.sum(draws >= true - 1e-9) + 1) / (len(draws) + 1))
