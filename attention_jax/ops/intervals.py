"""Interval arithmetic: what a formula of many numbers can give, from the least and the highest of each.

A mask's rule is written with Python's operators, so that it takes numbers, arrays and intervals. Of intervals it says
what holds of every pair of a block of queries and a block of keys, without looking at one pair.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp


@dataclass(frozen=True, eq=False)
class Interval:
    """Every number from `low` to `high`; of truths, whether it holds surely (`low`) and whether it may hold (`high`).

    Arithmetic is that of Moore 1966, §2.2: what it gives has every value that the numbers can give, perhaps others too.
    With NaN nothing is sure, and everything may be.
    """

    low: Any
    high: Any

    def __add__(self, other: Any) -> "Interval":
        other = interval(other)
        return Interval(self.low + other.low, self.high + other.high)

    def __neg__(self) -> "Interval":
        return Interval(-self.high, -self.low)

    def __sub__(self, other: Any) -> "Interval":
        return self + -interval(other)

    def __radd__(self, other: Any) -> "Interval":
        return self + other

    def __rsub__(self, other: Any) -> "Interval":
        return -self + other

    def __abs__(self) -> "Interval":
        return Interval(jnp.maximum(jnp.maximum(self.low, -self.high), 0), jnp.maximum(-self.low, self.high))

    def __le__(self, other: Any) -> "Interval":
        other = interval(other)
        return Interval(self.high <= other.low, ~(self.low > other.high))

    def __lt__(self, other: Any) -> "Interval":
        other = interval(other)
        return Interval(self.high < other.low, ~(self.low >= other.high))

    def __ge__(self, other: Any) -> "Interval":
        return interval(other) <= self

    def __gt__(self, other: Any) -> "Interval":
        return interval(other) < self

    def __eq__(self, other: Any) -> "Interval":  # type: ignore[override]
        return (self <= other) & (self >= other)

    def __ne__(self, other: Any) -> "Interval":  # type: ignore[override]
        return ~(self == other)

    def __and__(self, other: Any) -> "Interval":
        other = interval(other)
        return Interval(self.low & other.low, self.high & other.high)

    def __or__(self, other: Any) -> "Interval":
        other = interval(other)
        return Interval(self.low | other.low, self.high | other.high)

    def __invert__(self) -> "Interval":
        return Interval(~self.high, ~self.low)


def interval(value: Any) -> Interval:
    """The value as an interval: of a number or an array, from itself to itself."""
    return value if isinstance(value, Interval) else Interval(jnp.asarray(value), jnp.asarray(value))


def hull(values: Any, axis: int, size: int) -> Interval:
    """From the least to the highest of every `size` neighbours along an axis, which is counted from the end."""
    values = interval(values)
    axis += values.low.ndim
    low, high = (a.reshape(*a.shape[:axis], -1, size, *a.shape[axis + 1 :]) for a in (values.low, values.high))
    return Interval(jnp.min(low, axis + 1), jnp.max(high, axis + 1))
