"""The one engine for comparisons: settings against a baseline, over seeds, and over sentences where these are known.

Plain records go in and come out; nothing here knows of folders or configs. A sweep's answer, the orders and ranks of
an experiment and the table of kept results are thin callers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attention_jax.evaluation.bleu import bleu_of_statistics
from attention_jax.evaluation.extrapolation import reciprocal_ranks
from attention_jax.evaluation.metrics import metric
from attention_jax.evaluation.significance import (
    RESAMPLES,
    approximate_randomization,
    holm,
    paired_bootstrap,
    paired_t,
    seeds_needed,
    sign_flip,
)
from attention_jax.evaluation.statistics import (
    mean_interval,
    metric_interval,
    resampled_sums,
    two_level_interval,
)

LEVEL = 0.05
BLEU_COLUMNS = 10  # of a sentence's statistics
TESTS = ("p_seeds", "p_flips", "p_sentences", "p_bootstrap", "p_adjusted")


class Measured(NamedTuple):
    """What was measured of a setting. Settings are compared within their group."""

    setting: str
    group: str = ""
    values: Mapping[int, float] = {}  # seed → the metric
    lost: tuple[int, ...] = ()  # seeds without a value: they diverged, failed or are missing
    statistics: Mapping[int, Float[np.ndarray, "sentences 10"]] = {}  # seed → BLEU's, of every sentence
    sentences: str = ""  # tells which sentences these are


class Interval(NamedTuple):
    """A mean and its 95% interval; None where a single value has none."""

    mean: float
    low: float | None = None
    high: float | None = None


class Row(NamedTuple):
    """A setting as it compares; None where there is nothing to say. p-values are of its difference.

    Of a metric on the logarithm the difference is a ratio, exp(ln own − ln baseline), a geometric mean over seeds; its
    tests are of logarithms.
    """

    measured: Measured
    value: Interval | None = None
    difference: Interval | None = None  # to its baseline, over the seeds that both have
    p_seeds: float | None = None  # Student's paired t
    p_flips: float | None = None  # exact sign flips
    p_sentences: float | None = None  # approximate randomization
    p_bootstrap: float | None = None  # sacreBLEU's
    p_adjusted: float | None = None  # Holm's, of p_sentences where all have it, else of p_seeds


class Comparison(NamedTuple):
    """Rows as they were measured; by index, each one's baseline (None: it has none), the order, the best."""

    metric: str
    rows: tuple[Row, ...]
    baselines: tuple[int | None, ...]
    order: tuple[int, ...]  # group after group, the best first; settings that lost seeds after the others
    best: frozenset[int]  # of each group: the best mean, shared or not, among settings that lost no seed

    @property
    def contrast(self) -> str:
        """What a row's `difference` is: a "difference", or a "ratio"."""
        return metric(self.metric).contrast

    @property
    def is_over_sentences(self) -> bool:
        """Whether intervals are over sentences too."""
        return any(_has_sentences(row.measured) for row in self.rows)


def compare(name: str, measured: Sequence[Measured], baselines: Sequence[int | None]) -> Comparison:
    """Every setting's mean with its interval, and its difference to its baseline with interval and p-values.

    A metric on the logarithm is compared by it: see `Row`. Sentences count where every setting has them, and those of
    its baseline.

    Holm's correction is over all differences. Raises UserError where there is no metric of that name.
    """
    measured = [_without_infinities(one) for one in measured]
    rows = _rows(name, measured, baselines)
    by_sentences = all(_has_sentences(row.measured) for row in rows if row.value is not None) and all(
        row.p_sentences is not None for row in rows if row.difference is not None
    )
    if not by_sentences:
        rows = _rows(name, [one._replace(statistics={}) for one in measured], baselines)
    chosen = [row.p_sentences if by_sentences else row.p_seeds for row in rows]
    adjusted = holm([np.nan if p is None else p for p in chosen])
    rows = [row._replace(p_adjusted=_known(p)) for row, p in zip(rows, adjusted, strict=True)]
    order = _best_first(name, rows)
    return Comparison(name, tuple(rows), tuple(baselines), order, _best(name, rows, order))


def baselines_of(measured: Sequence[Measured], settings: Mapping[str, str]) -> list[int | None]:
    """The index of each row's baseline: the setting that its group names; None where the group lacks it."""
    indices = {one.group: index for index, one in enumerate(measured) if one.setting == settings.get(one.group)}
    return [indices.get(one.group) for one in measured]


def ranks(name: str, measured: Sequence[Measured]) -> dict[str, Float[np.ndarray, " seeds"]]:
    """Each setting's mean reciprocal rank over the groups, for each seed that all settings have in all groups.

    Settings that tie share the mean of their ranks; a seed that was lost is the last.
    """
    groups, seeds = shared_by_all(measured)
    heights = {
        (one.setting, one.group): [metric(name).height(one.values.get(seed)) for seed in seeds] for one in measured
    }
    settings = list(dict.fromkeys(one.setting for one in measured))
    found = np.array([[heights[setting, group] for group in groups] for setting in settings])
    return dict(zip(settings, reciprocal_ranks(found), strict=True)) if found.size else {}


def shared_by_all(measured: Sequence[Measured]) -> tuple[list[str], list[int]]:
    """The groups that every setting has, and the seeds that every setting has in all of these."""
    by_setting: dict[str, dict[str, set[int]]] = {}
    for one in measured:
        by_setting.setdefault(one.setting, {})[one.group] = {*one.values, *one.lost}
    every = list(dict.fromkeys(one.group for one in measured))
    groups = [group for group in every if all(group in found for found in by_setting.values())]
    seeds = [found[group] for found in by_setting.values() for group in groups]
    return groups, sorted(set.intersection(*seeds)) if seeds else []


def interval(name: str, values: Sequence[float] | Float[np.ndarray, " n"]) -> Interval:
    """A metric's mean over values and its interval, which stays within what the metric can be."""
    mean, low, high = metric_interval(name, values)
    return Interval(mean, _known(low), _known(high))


def mean_of(name: str, values: Sequence[float | None]) -> float | None:
    """A metric's mean as `interval` has it; None where there are no values, or one is not known or not finite."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return interval(name, known).mean if known and len(known) == len(values) else None


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """The rows in order, as dicts for JSON; what is None is left out."""
    return [_record(comparison.rows[index], comparison.contrast) for index in comparison.order]


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know where there are too few seeds for a test to find a difference."""
    if max((len(row.measured.values) for row in comparison.rows), default=0) < 2:
        return ["One seed: no interval over seeds, and no test over them."]
    pairs = _pairs(comparison)
    least, comparisons = 2.0 ** (1 - min(pairs, default=math.inf)), len(pairs)
    if comparisons * least <= LEVEL:
        return []
    shared = f"{min(pairs)} seeds" + (" in common, which are the fewest of a difference," if len({*pairs}) > 1 else "")
    return [
        f"With {shared} the sign-flip test cannot go below p = {least:.2g}: to find one of {comparisons} differences "
        f"at 5% after Holm's correction it needs {seeds_needed(comparisons)} seeds."
    ]


def _pairs(comparison: Comparison) -> list[int]:
    """How many seeds each tested difference is of: those that a setting and its baseline both have."""
    seeds = [row.measured.values.keys() for row in comparison.rows]
    return [
        len(seeds[index] & seeds[own])
        for index, own in enumerate(comparison.baselines)
        if own is not None and comparison.rows[index].p_flips is not None
    ]


def _without_infinities(own: Measured) -> Measured:
    """A value that is not finite is lost: it has no mean and no test."""
    values = {seed: value for seed, value in own.values.items() if math.isfinite(value)}
    return own._replace(values=values, lost=(*own.lost, *(seed for seed in own.values if seed not in values)))


def _rows(name: str, measured: Sequence[Measured], baselines: Sequence[int | None]) -> list[Row]:
    return [
        _row(name, one, None if own is None or own == index else measured[own])
        for index, (one, own) in enumerate(zip(measured, baselines, strict=True))
    ]


def _row(name: str, own: Measured, baseline: Measured | None) -> Row:
    if not own.values:
        return Row(own)
    row = Row(own, _value(name, own))
    common = [seed for seed in own.values if baseline is not None and seed in baseline.values]
    if baseline is None or not common:
        return row
    is_log = metric(name).is_log
    ours, theirs = (np.array([side.values[seed] for seed in common]) for side in (own, baseline))
    if is_log:
        ours, theirs = np.log(ours), np.log(theirs)
    if len(common) > 1:
        row = row._replace(p_seeds=_known(paired_t(ours, theirs)), p_flips=sign_flip(ours, theirs))
    if not (_has_sentences(own) and _has_sentences(baseline) and own.sentences == baseline.sentences):
        found = mean_interval(ours - theirs)
        return row._replace(difference=_interval(np.exp(found).tolist() if is_log else found))
    sides = [_side_by_side(side, common) for side in (own, baseline)]
    resampled = [_mean_bleu(resampled_sums(rows, RESAMPLES)) for rows in sides]  # the same sentences of both
    return row._replace(
        difference=_interval(two_level_interval(ours - theirs, resampled[0] - resampled[1])),
        p_sentences=approximate_randomization(_mean_bleu, *sides),
        p_bootstrap=paired_bootstrap(_mean_bleu, *sides),
    )


def _value(name: str, own: Measured) -> Interval:
    """The mean and its interval: over seeds and sentences where these are known, else over seeds."""
    values = list(own.values.values())
    if not _has_sentences(own):
        return interval(name, values)
    rows = _side_by_side(own, list(own.values))
    mean, *ends = two_level_interval(values, _mean_bleu(resampled_sums(rows, RESAMPLES)))
    return Interval(mean, *np.clip(ends, metric(name).low, metric(name).high).tolist())


def _best_first(name: str, rows: Sequence[Row]) -> tuple[int, ...]:
    """Indices, group by group: whole settings by their means, those that lost seeds, those without a value."""
    groups = list(dict.fromkeys(row.measured.group for row in rows))

    def rank(index):
        row = rows[index]
        height = metric(name).height(row.value.mean if row.value else None)
        return groups.index(row.measured.group), row.value is None, bool(row.measured.lost), -height

    return tuple(sorted(range(len(rows)), key=rank))


def _best(name: str, rows: Sequence[Row], order: Sequence[int]) -> frozenset[int]:
    """The best of each group among the settings that lost no seed: one that diverged is best by luck alone."""
    if metric(name).more_is_better is None:
        return frozenset()
    best: dict[str, set[int]] = {}
    for index in order:
        row = rows[index]
        if row.value is None or row.measured.lost:
            continue
        found = best.setdefault(row.measured.group, {index})
        if all(rows[other].value.mean == row.value.mean for other in found):  # type: ignore[union-attr]
            found.add(index)
    return frozenset().union(*best.values())


def _record(row: Row, contrast: str) -> dict[str, Any]:
    own = row.measured
    found: dict[str, Any] = {"setting": own.setting, "seeds": len(own.values)}
    found |= {"group": own.group} if own.group else {}
    found |= {"lost": len(own.lost)} if own.lost else {}
    found |= _written(row.value) if row.value else {}
    found |= {contrast: _written(row.difference)} if row.difference else {}
    return found | {name: p for name in TESTS if (p := getattr(row, name)) is not None}


def _written(found: Interval) -> dict[str, float]:
    return {name: value for name, value in found._asdict().items() if value is not None}


def _interval(found: Sequence[float]) -> Interval:
    return Interval(found[0], _known(found[1]), _known(found[2]))


def _has_sentences(own: Measured) -> bool:
    """Whether sentences may be drawn again: of one, every draw is the same."""
    return any(len(rows) > 1 for rows in own.statistics.values())


def _side_by_side(own: Measured, seeds: Sequence[int]) -> Float[np.ndarray, "sentences columns"]:
    return np.concatenate([own.statistics[seed] for seed in seeds], axis=-1)


def _mean_bleu(sums: np.ndarray) -> np.ndarray:
    """The mean over seeds of BLEU, whose statistics stand side by side."""
    return bleu_of_statistics(sums.reshape(*sums.shape[:-1], -1, BLEU_COLUMNS)).mean(-1)


def _known(value: float) -> float | None:
    return None if value != value else float(value)
