"""Settings against one another, by group and length: curves, orders and mean reciprocal ranks, all over seeds."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attention_jax.evaluation.comparison import Measured, baselines_of, compare, ranks, records
from attention_jax.evaluation.statistics import metric_interval

PARTS = ("mean", "low", "high")


class OfSeed(NamedTuple):
    """What was measured of one seed: measures by length, and the number that settings are ordered by."""

    curves: Mapping[str, Mapping[str, float]]
    value: float


LOST = OfSeed({}, math.nan)  # of a seed of which nothing was measured
Scores = dict[str, dict[str, dict[int, OfSeed]]]  # setting → group → seed


def gather(
    cells: Iterable[tuple[str, str, Mapping[str, Any]]], measured: Callable[[Mapping[str, Any]], OfSeed]
) -> Scores:
    """Every seed of every cell, (setting, group, result), by setting and group; one that diverged is lost.

    What was not finite, which JSON has as null, is not a number.
    """
    scores: Scores = {}
    for setting, group, result in cells:
        found = scores.setdefault(setting, {}).setdefault(group, {})
        for seed, member in zip(result["seeds"], result["members"], strict=True):
            found[seed] = LOST if result["status"] == "diverged" else _as_numbers(measured(member))
    return scores


def _as_numbers(one: OfSeed) -> OfSeed:
    curves = {name: {at: _or_nan(value) for at, value in curve.items()} for name, curve in one.curves.items()}
    return OfSeed(curves, _or_nan(one.value))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def measures_of(scores: Scores) -> list[str]:
    """The names of the measures, the first one leading."""
    every = (one for groups in scores.values() for seeds in groups.values() for one in kept(seeds))
    return list(next(every).curves)


def kept(seeds: Mapping[int, OfSeed]) -> list[OfSeed]:
    """What was measured of the seeds that were not lost."""
    return [one for one in seeds.values() if one.curves]


def groups_of(scores: Scores) -> list[str]:
    """The groups in the order in which they come."""
    return list(dict.fromkeys(group for found in scores.values() for group in found))


def measured_of(scores: Scores) -> list[Measured]:
    """The records of the engine: a setting in a group, each seed's number, and the seeds that were lost."""
    return [
        Measured(
            setting,
            group,
            values={seed: one.value for seed, one in seeds.items() if one.curves},
            lost=tuple(seed for seed, one in seeds.items() if not one.curves),
        )
        for setting, groups in scores.items()
        for group, seeds in groups.items()
    ]


def answer(scores: Scores, baselines: Mapping[str, str]) -> dict[str, Any]:
    """`curves` by setting and group, `mrr` by setting, and `orders` by group with differences to its baseline."""
    measured, lead = measured_of(scores), measures_of(scores)[0]
    ranked = {name: interval(values, "mrr") for name, values in ranks(lead, measured).items()}
    return {
        "curves": {
            name: {group: _curve(kept(seeds)) for group, seeds in groups.items() if kept(seeds)}
            for name, groups in scores.items()
        },
        "mrr": ranked,
        "orders": _orders(lead, measured, baselines) | {"mrr": sorted(ranked, key=lambda name: -ranked[name]["mean"])},
    }


def orders_by_length(scores: Scores, baselines: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Settings in order of the first measure at each length, with differences to a baseline, by "GROUP, LENGTH".

    Tests are corrected for the number of all of them together.
    """
    lead = measures_of(scores)[0]
    every = [one for groups in scores.values() for seeds in groups.values() for one in kept(seeds)]
    lengths = dict.fromkeys(length for one in every for length in one.curves[lead])
    measured = [record for length in lengths for record in measured_of(_at_length(scores, lead, length))]
    of_lengths = {_at(group, length): own for group, own in baselines.items() for length in lengths}
    return _orders(lead, measured, of_lengths)


def _at_length(scores: Scores, lead: str, length: str) -> Scores:
    """Scores of which each seed's number is its measure at a length, in groups of that length."""

    def there(seeds: Mapping[int, OfSeed]) -> dict[int, OfSeed]:
        return {
            seed: one._replace(value=one.curves[lead][length]) if one.curves else one for seed, one in seeds.items()
        }

    def has(seeds: Mapping[int, OfSeed]) -> bool:
        return all(length in one.curves[lead] for one in kept(seeds))

    return {
        setting: {_at(group, length): there(seeds) for group, seeds in groups.items() if has(seeds)}
        for setting, groups in scores.items()
    }


def _at(group: str, length: str) -> str:
    return f"{group}, {length}".removeprefix(", ")


def _orders(lead: str, measured: Sequence[Measured], baselines: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    found = records(compare(lead, measured, baselines_of(measured, baselines)))
    groups = dict.fromkeys(one.group for one in measured)
    return {group: [row for row in found if row.get("group", "") == group] for group in groups}


def interval(values: Sequence[float] | np.ndarray, measure: str) -> dict[str, float]:
    """The mean and the ends of its interval, which stay within what the measure can be."""
    return dict(zip(PARTS, metric_interval(measure, values), strict=True))


def _curve(every: Sequence[OfSeed]) -> dict[str, Any]:
    """Lengths with means and intervals of the first measure, and of the others by name."""
    first, *others = every[0].curves
    lengths = list(every[0].curves[first])

    def line(measure):
        values = [[one.curves[measure][length] for one in every] for length in lengths]
        rows = [interval([value for value in found if math.isfinite(value)] or [math.nan], measure) for found in values]
        return {part: [row[part] for row in rows] for part in PARTS}

    return {"length": [*map(_number, lengths)], **line(first), **{name: line(name) for name in others}}


def _number(length: str) -> float:
    """A length, or the middle of a range of them."""
    middle = float(np.mean([int(end) for end in length.split("-")]))
    return int(middle) if middle.is_integer() else middle
