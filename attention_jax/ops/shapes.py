"""Checks of shapes and choices, whose errors name the argument with its shape or value, and what it needs."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def require_same_size(axis: int, **arrays: Array) -> None:
    """Raise ValueError unless the two named arrays have the same size along `axis`."""
    (first, a), (second, b) = arrays.items()
    if a.shape[axis] != b.shape[axis]:
        raise ValueError(
            f"{first} {a.shape} and {second} {b.shape} need the same size along axis {axis}: "
            f"{a.shape[axis]} is not {b.shape[axis]}."
        )


def require_shape(name: str, array: Array, expected: tuple[int, ...], because: str) -> None:
    """Raise ValueError unless `array` has the `expected` shape."""
    if array.shape != expected:
        raise ValueError(f"{name} has shape {array.shape}, needs {expected}: {because}.")


def require_broadcast(name: str, shape: tuple[int, ...], target_name: str, target: tuple[int, ...]) -> None:
    """Raise ValueError unless `shape` broadcasts to exactly `target`."""
    try:
        fits = np.broadcast_shapes(shape, target) == tuple(target)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name} {shape} does not broadcast to the {target_name} {target}.")


def require_batch(**arrays: Array) -> None:
    """Raise ValueError unless the axes before the last two of the two named arrays broadcast."""
    (first, a), (second, b) = arrays.items()
    for name, array in arrays.items():
        if array.ndim < 2:
            raise ValueError(f"{name} has shape {array.shape}, needs at least two axes [..., length, features].")
    try:
        np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"{first} {a.shape} and {second} {b.shape} have batch axes {a.shape[:-2]} and {b.shape[:-2]}, "
            "which do not broadcast."
        ) from None


def require_batch_count(name: str, shape: tuple[int, ...], target_name: str, target: tuple[int, ...]) -> None:
    """Raise ValueError for a `shape` with batch axes, but not as many as `target`: which of them it has is a guess.

    Batch axes of size 1 do not count, because they mean the same anywhere.
    """
    if len(shape) != len(target) and any(size != 1 for size in shape[:-2]):
        raise ValueError(
            f"{name} {shape} has batch axes {shape[:-2]} and the {target_name} {target} have {target[:-2]}: give it an "
            f"axis of size 1 for each missing one, as {name}[:, None] for heads (materialize a rule first)."
        )


def align_ranks(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, with axes of size 1 put in front until all have the rank of the largest."""
    rank = max(jnp.ndim(a) for a in arrays)
    return tuple(jnp.reshape(a, (1,) * (rank - jnp.ndim(a)) + jnp.shape(a)) for a in arrays)


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(choices)}.")


def require_unset(record: Any, defaults: Mapping[str, Any], because: str) -> None:
    """Raise ValueError for a field of `record` that is not its default, with the reason why nothing reads it."""
    for name, default in defaults.items():
        value = getattr(record, name)
        if value != default:
            raise ValueError(f"{name}={value!r}: {because}. Set {name}={default!r}.")
