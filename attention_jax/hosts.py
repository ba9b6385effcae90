"""The processes of one run, a host each: who writes, and how all come to know the same.

Alone, a process is the first and agrees with itself. Every function but `is_first` and `is_alone` is a call that all
hosts make in the same order.
"""

import json
from typing import Any

import jax
import numpy as np

from attention_jax.errors import UserError


def is_first() -> bool:
    """Whether this is the host that logs and writes."""
    return is_alone() or jax.process_index() == 0


def is_alone() -> bool:
    """Whether there is no other host."""
    return not jax.distributed.is_initialized() or jax.process_count() == 1


def agreed(value: Any) -> Any:
    """What the first host says, as JSON has it; the others' value is not looked at."""
    if is_alone():
        return value
    from jax.experimental import multihost_utils

    said = np.frombuffer(json.dumps(value).encode(), np.uint8) if is_first() else np.zeros(0, np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(said.size)))
    padded = np.zeros(size, np.uint8)
    padded[: said.size] = said
    return json.loads(bytes(multihost_utils.broadcast_one_to_all(padded)))


def any_says(value: bool) -> bool:
    """Whether any host says so."""
    if is_alone():
        return value
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.asarray(value))))


def require_same(what: str, digest: str) -> None:
    """Raise UserError where a digest is not the same on all hosts, and name those that differ from the first."""
    if is_alone():
        return
    from jax.experimental import multihost_utils

    own = np.frombuffer(bytes.fromhex(digest), np.uint8)
    every = np.asarray(multihost_utils.process_allgather(own))
    others = np.flatnonzero((every != every[0]).any(axis=1)).tolist()
    if others:
        raise UserError(f"hosts {others}: {what} differ from the first host's. Give all hosts the same data and code.")
