"""Data sets of kernel regression: each is drawn by a pure function of a key, and has the noiseless truth beside it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

INTERVAL = 5.0
BLOB_CENTERS = ((-1.5, -1.0), (1.5, -1.0), (0.0, 1.5))


class Sample(NamedTuple):
    """One draw: inputs `[n, D]` and values `[n, V]`."""

    x: Float[Array, "n d"]
    y: Float[Array, "n v"]


class Problem(NamedTuple):
    """How to draw a sample; the queries; and the noiseless values there."""

    draw: Callable[[Key[Array, ""]], Sample]
    queries: Float[Array, "q d"]
    truth: Float[Array, "q v"]


def sine_power(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """2 sin x + x^0.8."""
    return 2 * jnp.sin(x) + x**0.8


def sine_linear(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """2 sin x + x."""
    return 2 * jnp.sin(x) + x


def blob_posterior(x: Float[Array, "q 2"], spread: float) -> Float[Array, "q v"]:
    """p(blob | x) of equally likely round Gaussians of standard deviation `spread`."""
    centers = jnp.asarray(BLOB_CENTERS)
    squared = jnp.sum(jnp.square(x[:, None, :] - centers[None, :, :]), axis=-1)
    return jax.nn.softmax(-squared / (2 * spread**2), axis=-1)


def _curve(function: Callable) -> Callable[[int, float], Problem]:
    def problem(n: int, noise: float) -> Problem:
        def draw(key):
            key_x, key_y = jax.random.split(key)
            x = jnp.sort(jax.random.uniform(key_x, (n, 1), maxval=INTERVAL), axis=0)
            return Sample(x, function(x) + noise * jax.random.normal(key_y, (n, 1)))

        queries = jnp.arange(50)[:, None] / 10
        return Problem(draw, queries, function(queries))

    return problem


def _blobs(n: int, noise: float) -> Problem:
    def draw(key):
        key_class, key_x = jax.random.split(key)
        label = jax.random.randint(key_class, (n,), 0, len(BLOB_CENTERS))
        x = jnp.asarray(BLOB_CENTERS)[label] + noise * jax.random.normal(key_x, (n, 2))
        return Sample(x, jax.nn.one_hot(label, len(BLOB_CENTERS)))

    line = jnp.linspace(-3, 3, 15)
    queries = jnp.stack(jnp.meshgrid(line, line), axis=-1).reshape(-1, 2)
    return Problem(draw, queries, blob_posterior(queries, noise))


PROBLEMS: dict[str, Callable[..., Problem]] = {
    "sine_power": _curve(sine_power),
    "sine_linear": _curve(sine_linear),
    "blobs": _blobs,
}
