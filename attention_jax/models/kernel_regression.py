"""Nadaraya–Watson estimators of a function from one sample, with fixed, rule-of-thumb and learned widths."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from attention_jax.ops.kernels import KERNELS, kernel_weights
from attention_jax.ops.pooling import kernel_regression
from attention_jax.ops.shapes import require_choice

Inputs = Float[Array, "n d"]
Values = Float[Array, "n v"]
Widths = Float[Array, " d"]


class Estimator(NamedTuple):
    """A kernel, and the rule that chooses its width from a sample: `width(x, y) → [D]`."""

    kernel: str
    width: Callable[[Inputs, Values], Widths]

    def weights(self, x: Inputs, y: Values, queries: Float[Array, "q d"]) -> Float[Array, "q n"]:
        """The weight of each sample for each query; equal weights for a query with an empty neighbourhood."""
        return kernel_weights(queries, x, self.kernel, self.width(x, y), empty="mean")

    def __call__(self, x: Inputs, y: Values, queries: Float[Array, "q d"]) -> Float[Array, "q v"]:
        """The estimate at the queries; the mean of all values for a query with an empty neighbourhood."""
        return kernel_regression(queries, x, y, kernel=self.kernel, width=self.width(x, y), empty="mean")


def estimator(
    name: str, steps: int, learning_rate: float, kernel: tuple[str, Array | float] = ("gaussian", 1.0)
) -> Estimator:
    """`average`, `silverman`, `learned`, `learned_leaky`, `kernel`, or KERNEL_WIDTH such as `boxcar_0.5`.

    `kernel` is the given kernel and width; the width may be traced. Raises ValueError for another name.
    """
    require_choice("kernel.name", kernel[0], tuple(KERNELS))
    rules = {
        "average": Estimator("constant", lambda x, y: jnp.ones(x.shape[-1])),
        "silverman": Estimator("gaussian", lambda x, y: silverman_width(x)),
        "learned": Estimator("gaussian", lambda x, y: learned_width(x, y, True, steps, learning_rate)[0]),
        "learned_leaky": Estimator("gaussian", lambda x, y: learned_width(x, y, False, steps, learning_rate)[0]),
        "kernel": Estimator(kernel[0], lambda x, y: jnp.full(x.shape[-1], kernel[1])),
    }
    if name in rules:
        return rules[name]
    shape, _, width = name.rpartition("_")
    if shape not in KERNELS or not _is_positive(width):
        raise ValueError(
            f"estimators={name!r}: choose one of {', '.join(rules)}, or KERNEL_WIDTH (boxcar_0.5) with one of "
            f"{', '.join(KERNELS)}."
        )
    return Estimator(shape, lambda x, y: jnp.full(x.shape[-1], float(width)))


def silverman_width(x: Inputs) -> Widths:
    """0.9 min(s, IQR / 1.34) n^(−1/5) for each coordinate (Silverman 1986, eq. 3.31).

    In D dimensions the exponent is −1 / (D + 4) (Scott 1992, §6.3). s divides by n − 1. Where the IQR is 0, because
    half of the points lie at one place, s stands alone. Raises ValueError for fewer than two points.
    """
    n, d = x.shape
    if n < 2:
        raise ValueError(f"x is {x.shape}: a spread needs two points or more.")
    upper, lower = jnp.percentile(x, jnp.array([75.0, 25.0]), axis=0)
    deviation, iqr = jnp.std(x, axis=0, ddof=1), upper - lower
    spread = jnp.where(iqr > 0, jnp.minimum(deviation, iqr / 1.34), deviation)
    return 0.9 * spread * n ** (-1 / (d + 4))


def learned_width(
    x: Inputs, y: Values, leave_one_out: bool, steps: int, learning_rate: float
) -> tuple[Widths, Float[Array, " steps"]]:
    """The width of each coordinate by gradient descent (Adam on log width, from 1), and its losses.

    With `leave_one_out` a pair is not among its own keys. Without it, the loss is smallest at width 0, where every
    point predicts itself: the leak that ruins the textbook example.
    """
    keep = ~jnp.eye(len(x), dtype=bool) if leave_one_out else None
    optimizer = optax.adam(learning_rate)

    def step(carry, _):
        log_width, state = carry
        loss, gradient = jax.value_and_grad(width_loss)(log_width, x, y, keep)
        updates, state = optimizer.update(gradient, state)
        return (log_width + updates, state), loss

    start = jnp.zeros(x.shape[-1])
    (log_width, _), losses = jax.lax.scan(step, (start, optimizer.init(start)), length=steps)
    return jnp.exp(log_width), losses


def width_loss(log_width: Widths, x: Inputs, y: Values, keep: Bool[Array, "n n"] | None) -> Float[Array, ""]:
    """Mean squared error of the sample's own values, estimated from the pairs that `keep` allows.

    The error Σ_j α_ij y_j − y_i is summed as Σ_j α_ij (y_j − y_i), which keeps its digits when it is small.
    """
    weights = kernel_weights(x, x, "gaussian", jnp.exp(log_width), keep)
    differences_QxKxV = y[None, :, :] - y[:, None, :]
    return jnp.mean(jnp.square(jnp.einsum("qk,qkv->qv", weights, differences_QxKxV)))


def _is_positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
