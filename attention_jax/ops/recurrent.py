"""Recurrent cells as pure functions. The inputs of a whole sequence are projected at once.

A state is a tuple of arrays `[..., H]`, the output first: `(h,)` for a GRU, `(h, c)` for an LSTM.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attention_jax.ops.shapes import align_ranks, require_shape

# What a step keeps for its backward pass: what takes long. The rest is computed again, faster than it would be read.
KEPT = ("dot_general", "tanh", "logistic", "exp", "div", "sqrt", "rsqrt", "sort", "top_k", "cumsum", "custom_vjp_call")
Sequence = Float[Array, "*batch t d"]
State = tuple[Float[Array, "*batch h"], ...]


class CellWeights(NamedTuple):
    """The weights of all G gates, side by side: `[D, G·H]`, `[H, G·H]`, `[G·H]`; and the GRU's second bias `[H]`.

    A step rounds them to the type of what they are multiplied with: gradients are sums over time in their own type.
    """

    w_i: Float[Array, "d gh"]
    w_h: Float[Array, "h gh"]
    bias: Float[Array, " gh"]
    candidate_bias: Any = None

    def project(self, x: Float[Array, "... d"]) -> Float[Array, "... gh"]:
        """The input's part of the gates, W_i x + b, for any number of time steps."""
        return jnp.add(*align_ranks(x @ self.w_i.astype(x.dtype), self.bias.astype(x.dtype)))

    def recur(self, hidden: Float[Array, "... h"]) -> Float[Array, "... gh"]:
        """The state's part of the gates, W_h h."""
        return hidden @ self.w_h.astype(hidden.dtype)


def gru_step(state: State, gates: Float[Array, "*batch 3h"], weights: CellWeights) -> State:
    """h' = (1 − z) n + z h, with r, z = σ(W_i x + W_h h + b), n = tanh(W_i x + r (W_h h + b_n)).

    Cho et al. 2014, eqs. 5–8; here the reset gate comes after the product, so that one product serves all gates.
    """
    (hidden,) = state
    reset_in, update_in, candidate_in = jnp.split(gates, 3, axis=-1)
    reset_h, update_h, candidate_h = jnp.split(weights.recur(hidden), 3, axis=-1)
    reset = jax.nn.sigmoid(reset_in + reset_h)
    update = jax.nn.sigmoid(update_in + update_h)
    bias = weights.candidate_bias.astype(hidden.dtype)
    candidate = jnp.tanh(candidate_in + reset * jnp.add(*align_ranks(candidate_h, bias)))
    return (candidate + update * (hidden - candidate),)


def lstm_step(state: State, gates: Float[Array, "*batch 4h"], weights: CellWeights) -> State:
    """c' = f c + i g, h' = o tanh(c'), with i, f, o = σ(W_i x + W_h h + b), g = tanh(W_i x + W_h h + b).

    Gers et al. 2000, §3. The gates are in the order i, f, g, o.
    """
    hidden, memory = state
    enter, forget, candidate, output = jnp.split(gates + weights.recur(hidden), 4, axis=-1)
    memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
    return jax.nn.sigmoid(output) * jnp.tanh(memory), memory


class Cell(NamedTuple):
    """A recurrent cell: its step, its number of gates, and the number of arrays in its state."""

    step: Callable[[State, Array, CellWeights], State]
    gates: int
    parts: int


CELLS = {"gru": Cell(gru_step, gates=3, parts=1), "lstm": Cell(lstm_step, gates=4, parts=2)}


def recurrent(
    cell: str,
    x: Sequence,
    valid: Bool[Array, "*batch t"],
    weights: CellWeights,
    reverse: bool = False,
    start: State | None = None,
) -> tuple[Float[Array, "*batch t h"], State]:
    """The outputs of all steps and the last state; a step on padding leaves the state as it is.

    The first state is `start`, or zeros.

    `cell` is one of `CELLS`. Raises ValueError for features or a mask that do not fit.
    """
    require_shape("w_i", weights.w_i, (x.shape[-1], weights.w_i.shape[-1]), f"x is {x.shape}")
    require_shape("valid", valid, x.shape[:-1], f"x is {x.shape}")

    def step(state, inputs):
        gates, is_valid = inputs
        new = CELLS[cell].step(state, gates, weights)
        state = tuple(jnp.where(is_valid[..., None], *parts) for parts in zip(new, state, strict=True))
        return state, state[0]

    zeros = (jnp.zeros((*x.shape[:-2], weights.w_h.shape[0]), x.dtype),) * CELLS[cell].parts
    time_first = jnp.moveaxis(weights.project(x), -2, 0), jnp.moveaxis(valid, -1, 0)
    last, outputs = over_time(step, start or zeros, time_first, reverse=reverse)
    return jnp.moveaxis(outputs, 0, -2), last


def over_time(step: Callable, start: Any, inputs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """`jax.lax.scan` over time. Its backward pass reads of every step what is `KEPT`, and computes the rest again.

    Of a gate that is σ(a) alone, and not σ(a) (1 − σ(a)) beside it (Chen et al. 2016).
    """
    kept = jax.checkpoint(step, policy=lambda primitive, *_, **__: primitive.name in KEPT, prevent_cse=False)
    return jax.lax.scan(kept, start, inputs, reverse=reverse)


def stacked_step(
    cell: str,
    layers: tuple[CellWeights, ...],
    states: tuple[State, ...],
    gates: Float[Array, "*batch gh"],
    masks: Float[Array, "layers *batch h"] | None = None,
) -> tuple[State, ...]:
    """One step of stacked layers. `gates` are the first layer's projected input; `masks` multiply the other inputs."""
    advanced: list[State] = []
    for layer, (weights, state) in enumerate(zip(layers, states, strict=True)):
        if layer > 0:
            below = advanced[-1][0]
            gates = weights.project(below if masks is None else (below * masks[layer]).astype(below.dtype))
        advanced.append(CELLS[cell].step(state, gates, weights))
    return tuple(advanced)
