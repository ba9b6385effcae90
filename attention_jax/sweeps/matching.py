"""Matched variants: in each config a whole number is solved for, so that all cost the same, in FLOPs or parameters."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from attention_jax.errors import UserError

WITHIN = 0.01
# What is matched: how a message names it, and a key that can be solved for.
MEASURES = {"flops": ("training FLOPs", "train.steps"), "parameters": ("parameters", "model.feed_forward")}


def matched(
    config: Mapping[str, Any],
    key: str,
    unit: int,
    target: float,
    measure: str,
    of: Callable[[Mapping[str, Any]], float],
) -> dict[str, Any]:
    """The flat config with the multiple of `unit` at `key` whose `measure` is nearest to the target.

    `of` gives the measure of a config, and grows with the number. Raises UserError where the key is no whole number, or
    nothing is within 1%.
    """
    if not isinstance(config.get(key), int) or isinstance(config.get(key), bool):
        raise UserError(f"config.sweep.match_by={key!r}: {config.get(key)!r} is not a whole number to solve for.")
    if unit < 1:
        raise UserError(f"config.sweep.match_unit={unit}: needs 1 or more.")

    said, usual = MEASURES[measure]
    other = f"Solve for another key: --config.sweep.match_by={usual}."

    @functools.cache
    def cost(count: int) -> float:
        return of({**config, key: count * unit})

    low, high = 0, max(config[key] // unit, 1)
    while cost(high) < target:
        if cost(2 * high) <= cost(high):
            raise UserError(f"config.sweep.match_by={key!r}: does not change the {said}. {other}")
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) < target else (low, middle)
    best = min((count for count in (low, high) if count), key=lambda count: abs(cost(count) - target))
    if abs(cost(best) / target - 1) > WITHIN:
        raise UserError(
            f"config.sweep.match={measure!r}: {key}={best * unit} comes nearest, with {cost(best):.4g} {said} "
            f"where the baseline has {target:.4g}: not within 1%. {other}"
        )
    return {**config, key: best * unit}
