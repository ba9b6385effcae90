"""The gated recurrent unit as pure functions; input projections are made for a whole sequence at once."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attention_jax.ops.shapes import align_ranks, require_shape

Sequence = Float[Array, "*batch t d"]
State = Float[Array, "*batch h"]


class GRUWeights(NamedTuple):
    """Weights of the reset, update and candidate gates side by side: `[D, 3H]`, `[H, 3H]`, `[3H]`, `[H]`."""

    w_i: Float[Array, "d 3h"]
    w_h: Float[Array, "h 3h"]
    bias: Float[Array, " 3h"]
    candidate_bias: Float[Array, " h"]

    def project(self, x: Float[Array, "... d"]) -> Float[Array, "... 3h"]:
        """The input's share of the three gates, W_i x + b, for any number of time steps."""
        return jnp.add(*align_ranks(x @ self.w_i, self.bias))


def gru_step(state: State, gates: Float[Array, "*batch 3h"], weights: GRUWeights) -> State:
    """h' = (1 − z) n + z h, with r, z = σ(W_i x + W_h h + b), n = tanh(W_i x + r (W_h h + b_n)).

    Cho et al. 2014, eqs. 5–8, with the reset gate after the product, so that one product serves all gates.
    """
    reset_in, update_in, candidate_in = jnp.split(gates, 3, axis=-1)
    reset_h, update_h, candidate_h = jnp.split(state @ weights.w_h, 3, axis=-1)
    reset = jax.nn.sigmoid(reset_in + reset_h)
    update = jax.nn.sigmoid(update_in + update_h)
    candidate = jnp.tanh(candidate_in + reset * jnp.add(*align_ranks(candidate_h, weights.candidate_bias)))
    return candidate + update * (state - candidate)


def gru(
    x: Sequence, valid: Bool[Array, "*batch t"], weights: GRUWeights, reverse: bool = False
) -> tuple[Float[Array, "*batch t h"], State]:
    """All states and the last one, from zeros; a padded step keeps the state it found.

    Raises ValueError where the features or the mask do not fit.
    """
    require_shape("w_i", weights.w_i, (x.shape[-1], weights.w_i.shape[-1]), f"x is {x.shape}")
    require_shape("valid", valid, x.shape[:-1], f"x is {x.shape}")

    def step(state, inputs):
        gates, is_valid = inputs
        state = jnp.where(is_valid[..., None], gru_step(state, gates, weights), state)
        return state, state

    start = jnp.zeros((*x.shape[:-2], weights.w_h.shape[0]), x.dtype)
    time_first = jnp.moveaxis(weights.project(x), -2, 0), jnp.moveaxis(valid, -1, 0)
    last, states = jax.lax.scan(step, start, time_first, reverse=reverse)
    return jnp.moveaxis(states, 0, -2), last
