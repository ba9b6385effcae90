"""Compute-matched variants: in each config a whole number is solved for, so that all train for the same FLOPs."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from attention_jax.errors import UserError

WITHIN = 0.01


def matched(
    config: Mapping[str, Any], key: str, unit: int, target: float, flops: Callable[[Mapping[str, Any]], float]
) -> dict[str, Any]:
    """The flat config with the multiple of `unit` at `key` whose FLOPs are nearest to the target.

    `flops` grows with the number. Raises UserError where the key is no whole number, or nothing is within 1%.
    """
    if not isinstance(config.get(key), int) or isinstance(config.get(key), bool):
        raise UserError(f"config.sweep.match_by={key!r}: {config.get(key)!r} is not a whole number to solve for.")
    if unit < 1:
        raise UserError(f"config.sweep.match_unit={unit}: needs 1 or more.")

    @functools.cache
    def cost(count: int) -> float:
        return flops({**config, key: count * unit})

    low, high = 0, max(config[key] // unit, 1)
    while cost(high) < target:
        if cost(2 * high) <= cost(high):
            raise UserError(f"config.sweep.match_by={key!r}: does not change how many FLOPs training takes.")
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) < target else (low, middle)
    best = min((count for count in (low, high) if count), key=lambda count: abs(cost(count) - target))
    if abs(cost(best) / target - 1) > WITHIN:
        raise UserError(
            f"config.sweep.match='flops': {key}={best * unit} comes nearest, with {cost(best):.4g} FLOPs where the "
            f"baseline has {target:.4g}: not within 1%. Solve for another key: --config.sweep.match_by=train.steps."
        )
    return {**config, key: best * unit}
