"""Functions that are drawn: for each draw of the data another one, of a kind that is known."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

KINDS = ("linear", "smooth")  # the values' features, in this order
WAVES = 128  # that make a smooth function


class Draw(NamedTuple):
    """Pairs of a key and its noisy values, one of each kind; and queries with the noiseless values there."""

    key: Float[Array, "n d"]
    value: Float[Array, "n kinds"]
    query: Float[Array, "q d"]
    truth: Float[Array, "q kinds"]


def draw(
    key: Key[Array, ""],
    n: int,
    queries: int,
    dimensions: int,
    noise: Array | float,
    kinds: Sequence[str] = KINDS,
) -> Draw:
    """Keys and queries from N(0, I), and functions of variance 1; values have noise of a given deviation.

    Of some `kinds` alone they are what they are beside others.

    "linear" is wᵀx with w from N(0, I / d) (Garg et al. 2022, §3, but for the scale). "smooth" is a Gaussian process
    whose covariance is exp(−‖x − y‖² / 2d), from 128 random waves (Rahimi & Recht 2007, §3): its scale grows as
    distances between points do.
    """
    key_points, key_noise, *keys = jax.random.split(key, 4)
    points = jax.random.normal(key_points, (n + queries, dimensions))
    made = {"linear": _linear, "smooth": _smooth}
    truth = jnp.concatenate([made[kind](keys[KINDS.index(kind)], points) for kind in kinds], axis=-1)
    noises = jax.random.normal(key_noise, (n, len(KINDS)))
    value = truth[:n] + noise * jnp.stack([noises[:, KINDS.index(kind)] for kind in kinds], axis=-1)
    return Draw(points[:n], value, points[n:], truth[n:])


def _linear(key: Key[Array, ""], x: Float[Array, "n d"]) -> Float[Array, "n 1"]:
    size = x.shape[-1]
    return x @ jax.random.normal(key, (size, 1)) / math.sqrt(size)


def _smooth(key: Key[Array, ""], x: Float[Array, "n d"]) -> Float[Array, "n 1"]:
    key_waves, key_phases, key_heights = jax.random.split(key, 3)
    size = x.shape[-1]
    waves = jax.random.normal(key_waves, (size, WAVES)) / math.sqrt(size)
    phases = jax.random.uniform(key_phases, (1, WAVES), maxval=2 * math.pi)
    heights = jax.random.normal(key_heights, (WAVES, 1))
    return jnp.cos(x @ waves + phases) @ heights * math.sqrt(2 / WAVES)
