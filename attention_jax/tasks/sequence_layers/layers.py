"""Layers that mix n tokens of d features, without projections, with the published formulas for each.

Vaswani et al. 2017, table 1: compute, sequential operations, and the longest path between two tokens.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from attention_jax.ops.mixing import convolution, windowed_attention
from attention_jax.ops.pooling import attend
from attention_jax.ops.recurrent import CELLS, CellWeights, recurrent


class Sizes(NamedTuple):
    """A sequence's length and features, a kernel's size, and a window's reach on each side."""

    n: int
    d: int
    kernel: int
    reach: int


class SequenceLayer(NamedTuple):
    """A layer without projections, and its formulas.

    `apply(params, x, sizes, dilation)` is one layer of a stack. The longest path is counted in layers, or, if `spread`
    is given, in steps of a recurrence: `spread` takes one step at all tokens at once.
    """

    init: Callable[[Key[Array, ""], Sizes], Any]
    apply: Callable[[Any, Float[Array, "n d"], Sizes, int], Float[Array, "n d"]]
    compute: str
    flops: Callable[[Sizes], float]  # by the formula, multiplications and additions counted apart
    sequential: str
    path: str
    longest: Callable[[Sizes], float]  # the longest path, by the formula
    spread: Callable[[Any, Array, Array, Sizes], Array] | None = None
    dilations: Callable[[Sizes], tuple[int, ...]] = lambda sizes: (1,)  # of a stack's layers, over and over


def _gru_weights(key: Array, sizes: Sizes) -> CellWeights:
    first, second = jax.random.split(key)
    shape, scale = (sizes.d, 3 * sizes.d), sizes.d**-0.5
    w_i, w_h = (scale * jax.random.normal(one, shape) for one in (first, second))
    return CellWeights(w_i, w_h, jnp.zeros(3 * sizes.d), jnp.zeros(sizes.d))


def _gru_step(weights: CellWeights, x: Array, states: Array, sizes: Sizes) -> Array:
    """Every token's new state from the state of the token before it; n such steps give the recurrence."""
    del sizes
    before = jnp.pad(states, ((1, 0), (0, 0)))[:-1]
    return CELLS["gru"].step((before,), weights.project(x), weights)[0]


def _kernel(key: Array, sizes: Sizes) -> Array:
    return jax.random.normal(key, (sizes.kernel, sizes.d, sizes.d)) / math.sqrt(sizes.kernel * sizes.d)


def _dilated_layers(sizes: Sizes) -> int:
    """⌈log_k n⌉: so many layers, of dilations 1, k, k², …, see k^layers ≥ n tokens."""
    layers = 1
    while sizes.kernel**layers < sizes.n:
        layers += 1
    return layers


LAYERS = {
    "self_attention": SequenceLayer(
        init=lambda key, sizes: (),
        apply=lambda params, x, sizes, dilation: attend(x, x, x),
        compute="n² d",
        flops=lambda sizes: 4 * sizes.n**2 * sizes.d,
        sequential="1",
        path="1",
        longest=lambda sizes: 1,
    ),
    "window": SequenceLayer(
        init=lambda key, sizes: (),
        apply=lambda params, x, sizes, dilation: windowed_attention(x, x, x, sizes.reach),
        compute="r n d",
        flops=lambda sizes: 4 * (2 * sizes.reach + 1) * sizes.n * sizes.d,
        sequential="1",
        path="n / r",
        longest=lambda sizes: math.ceil((sizes.n - 1) / sizes.reach),
    ),
    "gru": SequenceLayer(
        init=_gru_weights,
        apply=lambda weights, x, sizes, dilation: recurrent("gru", x, jnp.ones(x.shape[:-1], bool), weights)[0],
        compute="n d²",
        flops=lambda sizes: 12 * sizes.n * sizes.d**2,
        sequential="n",
        path="n",
        longest=lambda sizes: sizes.n,
        spread=_gru_step,
    ),
    "cnn": SequenceLayer(
        init=_kernel,
        apply=lambda kernel, x, sizes, dilation: convolution(x, kernel),
        compute="k n d²",
        flops=lambda sizes: 2 * sizes.kernel * sizes.n * sizes.d**2,
        sequential="1",
        path="n / k",
        longest=lambda sizes: math.ceil((sizes.n - 1) / (sizes.kernel // 2)),
    ),
    "cnn_dilated": SequenceLayer(
        init=_kernel,
        apply=lambda kernel, x, sizes, dilation: convolution(x, kernel, dilation=dilation, is_causal=True),
        compute="k n d²",
        flops=lambda sizes: 2 * sizes.kernel * sizes.n * sizes.d**2,
        sequential="1",
        path="log_k n",
        longest=_dilated_layers,
        dilations=lambda sizes: tuple(sizes.kernel**level for level in range(_dilated_layers(sizes))),
    ),
}


def applied(layer: SequenceLayer, sizes: Sizes, params: Any, x: Array) -> Array:
    """The layer's outputs for x, with the last of its dilations."""
    return layer.apply(params, x, sizes, layer.dilations(sizes)[-1])
