"""Dtypes of arrays: whole numbers are computed with as numbers."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array


def floating(x: Array, otherwise: Any = jnp.float32) -> Array:
    """x, in the dtype `otherwise` where it is whole numbers."""
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(otherwise)
