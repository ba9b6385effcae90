"""The space of a sweep: a list of flat dicts, each the overrides of one cell, built from combinators.

    product(grid("optimizer.learning_rate", (1e-3, 3e-3)), grid("model.kwargs.layers", (1, 2)), seeds(5))

is twenty of them: `{"optimizer.learning_rate": 0.001, "model.kwargs.layers": 1, "seeds": (0,)}` and so on. A key is
a config's; `variant` is the config file's own. What a search draws from is plain data too, a draw a key:

    {"optimizer.learning_rate": log_uniform(1e-4, 1e-1), "optimizer.dropout": uniform(0, 0.3)}
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attention_jax.errors import UserError

Overrides = dict[str, Any]
Space = list[Overrides]


class Uniform(NamedTuple):
    """Numbers between `low` and `high`: all alike likely, or every factor where `log`."""

    low: float
    high: float
    log: bool = False

    def __call__(self, generator: np.random.Generator) -> float:
        if self.log:
            return float(np.exp(generator.uniform(np.log(self.low), np.log(self.high))))
        return float(generator.uniform(self.low, self.high))


class Choice(NamedTuple):
    """Values, all alike likely."""

    values: tuple[Any, ...]

    def __call__(self, generator: np.random.Generator) -> Any:
        return self.values[int(generator.integers(len(self.values)))]


Draw = Uniform | Choice


def grid(key: str, values: Sequence[Any]) -> Space:
    """One cell a value. Raises UserError where there is none, or one twice."""
    if not len(values):
        raise UserError(f"sweep: grid({key!r}, …) has no values.")
    if any(value in values[:index] for index, value in enumerate(values)):
        raise UserError(f"sweep: grid({key!r}, {values}) has a value twice.")
    return [{key: value} for value in values]


def seeds(n: int, first: int = 0) -> Space:
    """Seeds `first`, `first` + 1, …: a cell each."""
    return grid("seeds", [(seed,) for seed in range(first, first + n)])


def product(*spaces: Space) -> Space:
    """Every combination of a cell of each space, the last changing fastest.

    Raises UserError where two spaces override one key.
    """
    return [_merged(cells) for cells in itertools.product(*spaces)]


def zipped(*spaces: Space) -> Space:
    """The first cell of each space together, then the second, …

    Raises UserError where their lengths differ, or two spaces override one key.
    """
    if len({len(space) for space in spaces}) > 1:
        raise UserError(f"sweep: zipped needs as many cells of each, not {', '.join(str(len(s)) for s in spaces)}.")
    return [_merged(cells) for cells in zip(*spaces, strict=True)]


def chain(*spaces: Space) -> Space:
    """The cells of one space, then of the next. What both hold, such as a baseline, is one cell."""
    return [cell for space in spaces for cell in space]


def random(n: int, key: int, **draws: Draw) -> Space:
    """`n` cells drawn with `key`, such as random(20, 0, **{"optimizer.dropout": uniform(0, 0.5)}).

    A cell's values do not depend on `n`: a longer sweep goes on with the same cells.
    """
    if n < 1 or not draws:
        raise UserError(f"sweep: random({n}, …) over {len(draws)} keys is an empty space.")
    return [{name: draw(np.random.default_rng((key, cell, index))) for index, (name, draw) in enumerate(draws.items())}
            for cell in range(n)]  # fmt: skip


def uniform(low: float, high: float) -> Draw:
    """A number between `low` and `high`, all alike likely."""
    _require_order(low, high, -math.inf)
    return Uniform(low, high)


def log_uniform(low: float, high: float) -> Draw:
    """exp of a number between ln `low` and ln `high`: every factor alike likely."""
    _require_order(low, high, 0)
    return Uniform(low, high, log=True)


def choice(values: Sequence[Any]) -> Draw:
    """One of the values, all alike likely."""
    if not len(values):
        raise UserError("sweep: choice(()) has no values.")
    return Choice(tuple(values))


def _merged(cells: Sequence[Mapping[str, Any]]) -> Overrides:
    merged: Overrides = {}
    for cell in cells:
        for key in cell:
            clash = next((other for other in merged if _overlap(key, other)), None)
            if clash is not None:
                which = repr(key) if key == clash else f"{clash!r} and {key!r}, one inside the other,"
                raise UserError(f"sweep: {which} overridden twice in one cell ({merged[clash]!r} and {cell[key]!r}).")
        merged |= cell
    return merged


def _overlap(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


def _require_order(low: float, high: float, above: float) -> None:
    if not above < low < high:
        raise UserError(
            f"sweep: a number from {low} to {high} cannot be drawn: needs {'0 < ' if above == 0 else ''}low < high."
        )
