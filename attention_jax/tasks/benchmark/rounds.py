"""What a benchmark finds: rows of values, ours and others', which were measured in turn, one of each a round."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from attention_jax.evaluation.statistics import fitted_powers, mean_interval

Measure = Callable[[], float]


class Row(NamedTuple):
    """What was measured, in which unit; a value a round of ours, and of each of the others by name.

    More is better of a unit a second (`tokens/s`), and less of every other (`s`, `MB`).
    """

    part: str
    what: str
    unit: str
    ours: list[float]
    others: Mapping[str, list[float]] = {}
    note: str = ""

    @property
    def best(self) -> str:
        """The best of the others by its median; "" where there is none."""
        order = max if self.is_rate else min
        return order(self.others, key=lambda name: statistics.median(self.others[name]), default="")

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith("/s")

    @property
    def ratio(self) -> tuple[float, float, float] | None:
        """How many times better ours is than the best of the others, with its 95% interval; None without others.

        exp of the mean over rounds of the logarithm of a round's ratio, and Student's t for its interval.
        """
        if not self.others:
            return None
        logs = np.log(np.array(self.ours) / np.array(self.others[self.best]))
        mean, low, high = np.exp(mean_interval(logs if self.is_rate else -logs)).tolist()
        return mean, low, high

    def as_dict(self) -> dict[str, Any]:
        """What a result keeps: medians, the ratio, and every round's values."""
        medians = {name: statistics.median(values) for name, values in self.others.items()}
        return {
            **{"part": self.part, "what": self.what, "unit": self.unit, "ours": statistics.median(self.ours)},
            **{"others": medians, "best": self.best, "ratio": self.ratio, "note": self.note},
            "rounds": {"ours": self.ours, "others": dict(self.others)},
        }


def in_turn(rounds: int, ours: Measure, others: Mapping[str, Measure]) -> tuple[list[float], dict[str, list[float]]]:
    """Each measure's values, one a round; who is first moves on from round to round."""
    measures = [("", ours), *others.items()]
    found: dict[str, list[float]] = {name: [] for name, _ in measures}
    for index in range(rounds):
        for name, measure in measures[index % len(measures) :] + measures[: index % len(measures)]:
            found[name].append(measure())
    return found.pop(""), found


class Growth(NamedTuple):
    """What was measured at several sizes of one thing, and the exponent that is expected: value = c · size^p."""

    part: str
    what: str
    of: str
    sizes: list[float]
    values: list[float]
    expected: float

    def as_dict(self) -> dict[str, Any]:
        """Of a result, with the fitted exponent and its 95% interval."""
        fitted = fitted_powers({self.of: self.sizes}, self.values)[self.of]
        return {**self._asdict(), "exponent": [round(end, 6) + 0.0 for end in fitted]}  # never −0
