"""A sweep's settings as a grid of factors, and means over what is not looked at."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from attention_jax.evaluation.comparison import Interval, Row, interval
from attention_jax.evaluation.metrics import metric


class Factor(NamedTuple):
    """What settings differ in: a key, its levels in the order in which they come, and each setting's level."""

    key: str
    levels: tuple[Any, ...]
    level_of: tuple[int, ...]


def factors_of(settings: Sequence[Mapping[str, Any]]) -> list[Factor]:
    """The factors of settings, each a dict of overrides; keys that change together are one, by the first's name.

    The level of a setting that does not override a key is None.
    """
    found: dict[tuple[int, ...], Factor] = {}
    for key in dict.fromkeys(key for one in settings for key in one):
        levels = {repr(one.get(key)): one.get(key) for one in settings}
        of = tuple([*levels].index(repr(one.get(key))) for one in settings)
        if len(levels) > 1:
            found.setdefault(of, Factor(key, tuple(levels.values()), of))
    return list(found.values())


def is_grid(factors: Sequence[Factor], settings: int) -> bool:
    """Whether so many settings are every combination of the factors' levels, each once."""
    combinations = {*zip(*(factor.level_of for factor in factors), strict=True)}
    return settings == len(combinations) == math.prod(len(factor.levels) for factor in factors)


def pooled(name: str, rows: Sequence[Row]) -> Interval | None:
    """The mean of a metric over settings with its interval over seeds; None where they have no seed in common.

    x̄ and Student's t of the means over settings of each seed that all of them have, all on the logarithm where the
    metric's row says so. A setting alone has its own.
    """
    if len(rows) == 1:
        return rows[0].value
    common = [seed for seed in rows[0].measured.values if all(seed in row.measured.values for row in rows)]
    means = [interval(name, [row.measured.values[seed] for row in rows]).mean for seed in common]
    return interval(name, means) if means else None


def best_of(name: str, means: Iterable[Interval | None]) -> set[int]:
    """The indices of the best means, all that tie; none where neither more nor less of the metric is better."""
    row = metric(name)
    heights = [row.height(None if one is None else one.mean) for one in means]
    most = max(heights, default=-math.inf)
    if row.more_is_better is None or most == -math.inf:
        return set()
    return {index for index, height in enumerate(heights) if height == most}
