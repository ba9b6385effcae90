"""Position encodings: records of pure functions over explicit positions `[..., T]`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.shapes import align_ranks


class Encoding(NamedTuple):
    """A position encoding; `add(params, x, positions) → x` is None where nothing is added to the embeddings."""

    add: Callable[[Any, Array, Array], Array] | None = None


def sinusoidal(positions: Float[Array, "..."] | Int[Array, "..."], width: int) -> Float[Array, "... width"]:
    """P[i, 2j] = sin(i / 10000^(2j / width)), P[i, 2j + 1] = cos(same) (Vaswani et al. 2017, §3.5).

    Raises ValueError for an odd width.
    """
    if width % 2:
        raise ValueError(f"width={width}: sines and cosines come in pairs, so that it must be even.")
    frequencies = 10000.0 ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angle = jnp.multiply(*align_ranks(positions[..., None].astype(jnp.float32), frequencies))
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(*positions.shape, width)


def sinusoidal_table(length: int, width: int) -> Float[Array, "length width"]:
    """The sinusoids of positions 0 … length − 1."""
    return sinusoidal(jnp.arange(length), width)


def _add_sinusoidal(params: Any, x: Float[Array, "*batch t d"], positions: Int[Array, "*#batch t"]) -> Array:
    del params
    return jnp.add(*align_ranks(x, sinusoidal(positions, x.shape[-1]).astype(x.dtype)))


ENCODINGS: dict[str, Encoding] = {"none": Encoding(), "sinusoidal": Encoding(add=_add_sinusoidal)}
