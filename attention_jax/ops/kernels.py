"""Kernels of Nadaraya–Watson regression: how much a neighbour at a scaled distance counts.

A kernel maps the scaled distance u = ‖q − k‖ / width, given as u², to a weight ≥ 0. The weights of a query are divided
by their sum, without an exponential (Nadaraya 1964; Watson 1964); constant factors of a kernel cancel.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attention_jax.ops.masking import Mask, exponentials, masked_normalize, with_mask
from attention_jax.ops.shapes import align_ranks, require_batch, require_choice, require_same_size

Squared = Float[Array, "..."]


def gaussian(squared: Squared) -> Squared:
    """exp(−u² / 2)."""
    return jnp.exp(log_gaussian(squared))


def log_gaussian(squared: Squared) -> Squared:
    """−u² / 2, the logarithm of the Gaussian kernel."""
    return -squared / 2


def boxcar(squared: Squared) -> Squared:
    """1 for |u| < 1, else 0."""
    return (squared < 1).astype(squared.dtype)


def triangular(squared: Squared) -> Squared:
    """(1 − |u|)₊, which some texts call Epanechnikov's."""
    return jnp.maximum(1 - _root(squared), 0)


def epanechnikov(squared: Squared) -> Squared:
    """¾ (1 − u²)₊ (Epanechnikov 1969)."""
    return 0.75 * jnp.maximum(1 - squared, 0)


def constant(squared: Squared) -> Squared:
    """1 everywhere: average pooling."""
    return jnp.ones_like(squared)


class Kernel(NamedTuple):
    """A kernel by u², since a root has no second derivative at 0, and its logarithm if its support is unbounded.

    By the logarithm weights of far neighbours do not underflow.
    """

    of_squared: Callable[[Squared], Squared]
    log_of_squared: Callable[[Squared], Squared] | None = None

    def apply(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """K(u)."""
        return self.of_squared(jnp.square(u))


KERNELS: dict[str, Kernel] = {
    "gaussian": Kernel(gaussian, log_gaussian),
    "boxcar": Kernel(boxcar),
    "triangular": Kernel(triangular),
    "epanechnikov": Kernel(epanechnikov),
    "constant": Kernel(constant),
}


def scaled_distance(
    query: Float[Array, "*#batch q d"], key: Float[Array, "*#batch k d"], width: Float[Array, "..."] | float = 1.0
) -> Float[Array, "*batch q k"]:
    """‖(q − k) / width‖, with a zero gradient where q = k. `scaled_square` has the arguments."""
    return _root(scaled_square(query, key, width))


def scaled_square(
    query: Float[Array, "*#batch q d"], key: Float[Array, "*#batch k d"], width: Float[Array, "..."] | float = 1.0
) -> Float[Array, "*batch q k"]:
    """‖(q − k) / width‖², exact for close neighbours.

    `width` is a number, or one for each coordinate `[..., D]`. All differences `[..., D, Q, K]` are formed, in float32:
    this is for the few dimensions of kernel regression; for many, `scoring.gaussian` forms none.
    """
    require_batch(query=query, key=key)
    require_same_size(-1, query=query, key=key)
    width = jnp.asarray(width, jnp.promote_types(jnp.result_type(query, key), jnp.float32))
    if width.ndim:
        require_same_size(-1, query=query, width=width)
    query, key = align_ranks(query.astype(width.dtype), key.astype(width.dtype))
    # Coordinates lead, since a sum over a short last axis does not vectorise.
    difference_DxQxK = jnp.moveaxis(query, -1, -2)[..., :, None] - jnp.moveaxis(key, -1, -2)[..., None, :]
    difference_DxQxK, width = align_ranks(difference_DxQxK, width[..., None, None])
    return jnp.sum(jnp.square(difference_DxQxK / width), axis=-3)


def _root(squared: Squared) -> Squared:
    # No branch on squared == 0: the compiler may compute `squared` twice, rounded differently.
    return jnp.sqrt(jnp.maximum(squared, jnp.finfo(squared.dtype).tiny))


def kernel_weights(
    query: Float[Array, "*#batch q d"],
    key: Float[Array, "*#batch k d"],
    kernel: str = "gaussian",
    width: Float[Array, "..."] | float = 1.0,
    mask: Mask | None = None,
    empty: str = "mean",
) -> Float[Array, "*batch q k"]:
    """K(‖q − k_i‖ / width) / Σ_j K(‖q − k_j‖ / width) (Nadaraya 1964, eq. 3; Watson 1964).

    `empty` is for a query with no neighbour inside a compact kernel: "mean" gives equal weights to the keys that `mask`
    allows, "zeros" gives zeros. A query that may attend to no key always gets zeros. Raises ValueError for an unknown
    kernel.
    """
    weights, _ = undivided_weights(query, key, kernel, width, mask)
    return masked_normalize(weights, mask, empty)


def undivided_weights(
    query: Float[Array, "*#batch q d"],
    key: Float[Array, "*#batch k d"],
    kernel: str = "gaussian",
    width: Float[Array, "..."] | float = 1.0,
    mask: Mask | None = None,
) -> tuple[Float[Array, "*batch q k"], Bool[Array, "*#batch #q #k"]]:
    """c K(‖q − k_i‖ / width) over the keys that `mask` allows, and which those are; c is a query's own.

    The nearest key of a Gaussian has 1, so that far neighbours do not underflow; compact kernels have c = 1. Raises
    ValueError for an unknown kernel.
    """
    require_choice("kernel", kernel, tuple(KERNELS))
    chosen, squared = KERNELS[kernel], scaled_square(query, key, width)
    if chosen.log_of_squared is not None:
        logarithms, allowed = with_mask(chosen.log_of_squared(squared), mask)
        return exponentials(logarithms, allowed), allowed
    weights, allowed = with_mask(chosen.of_squared(squared), mask)
    return jnp.where(allowed, weights, 0), allowed
