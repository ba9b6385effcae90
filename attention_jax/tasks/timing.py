"""How long calls take by the clock, with what they give computed."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

FEWEST = 3  # calls whose median is a rate


def seconds_of(call: Callable, *arguments: Any) -> float:
    """Of one call."""
    started = time.perf_counter()
    jax.block_until_ready(call(*arguments))
    return time.perf_counter() - started


def least_seconds(call: Callable, *arguments: Any, repeats: int) -> float:
    """The least of some calls after one that compiles; longer ones include other work on the machine."""
    seconds_of(call, *arguments)
    return min(seconds_of(call, *arguments) for _ in range(repeats))


def median_rate(call: Callable[[], float], seconds: float) -> float:
    """Items a second: the median of the calls of so many seconds, each of which says how many items it did."""
    rates: list[float] = []
    until = time.perf_counter() + seconds
    while len(rates) < FEWEST or time.perf_counter() < until:
        started = time.perf_counter()
        items = call()
        rates.append(items / (time.perf_counter() - started))
    return statistics.median(rates)
