"""Attention without a map: a state of fixed size takes up keys and values, and queries read it.

A state is a matrix `[..., D, V]`. At every token it decays, takes up the token's key and value, and is read:

    S_t = diag(a_t) S_{t−1} + k_t v_tᵀ,   o_t = S_tᵀ q_t

With a = 1 this is linear attention (Katharopoulos et al. 2020, §3.2–3.3), with one constant a head retention (Sun et
al. 2023, §2.1), with a that depends on the token gated linear attention (Yang et al. 2023, §4). By the delta rule a
state takes up only what it does not say yet, at a rate β_t (Schlag et al. 2021, §4.2; Yang et al. 2024, §2.2):

    S_t = S_{t−1} + β_t k_t (v_t − S_{t−1}ᵀ k_t)ᵀ

Every form of it gives the same: `parallel` has all pairs of tokens at once, `recurrent` goes token by token, and
`chunked` block by block, with all pairs of a block. Decays and rates together only `recurrent` takes. Queries and
keys are `[..., T, D]`, values `[..., T, V]`, decays their logarithms `[..., T, D]`, or `[..., T, 1]` where all features
decay alike, and rates `[..., T, 1]`. A token whose key is 0 and whose decay is 1 leaves the state as it is. Sums are in
float32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.recurrent import over_time

SLOWNESS = 16  # the root that is taken of a decay that tokens say
MOST_DECAY = 64.0  # by how much a block may lower the logarithm of what it found: the inverse is still a float32


class Tokens(NamedTuple):
    """What tokens give to a state and ask of it; without `rate` they are taken up as they are."""

    query: Float[Array, "*b t d"]
    key: Float[Array, "*b t d"]
    value: Float[Array, "*b t v"]
    log_decay: Float[Array, "*b t e"] | None = None
    rate: Float[Array, "*b t 1"] | None = None


def empty_state(tokens: Tokens) -> Float[Array, "*b d v"]:
    """The state before the first token: zeros."""
    return jnp.zeros((*tokens.key.shape[:-2], tokens.key.shape[-1], tokens.value.shape[-1]), jnp.float32)


def parallel(tokens: Tokens) -> Float[Array, "*b t v"]:
    """What every token reads, from the empty state: o_i = Σ_{j ≤ i} (Σ_d q_id k_jd a_{j+1,d} ⋯ a_{i,d}) v_j.

    By the delta rule v_j are the corrections β_j (v_j − S_{j−1}ᵀ k_j), which solve a triangular system (Yang et al.
    2024, §3). Memory grows with T² D.
    """
    _require_either(tokens)
    query, key, value, log_decay, rate = tokens
    is_causal = jnp.tril(jnp.ones((query.shape[-2],) * 2, bool))
    if log_decay is None:
        weights = query @ jnp.swapaxes(key, -1, -2)
    else:
        sums = jnp.cumsum(log_decay, axis=-2)
        between = _where(is_causal[..., None], sums[..., :, None, :] - sums[..., None, :, :])  # later ones overflow
        weights = jnp.sum(query[..., :, None, :] * key[..., None, :, :] * jnp.exp(between), axis=-1)
    if rate is not None:
        value = _corrections(key, value, rate)
    return _where(is_causal, weights) @ value


def recurrent(
    tokens: Tokens, state: Float[Array, "*b d v"] | None = None
) -> tuple[Float[Array, "*b t v"], Float[Array, "*b d v"]]:
    """What every token reads, and the state after the last, token by token."""

    def step(state, token):
        query, key, value, log_decay, rate = token
        if log_decay is not None:
            state = state * jnp.exp(log_decay)[..., None]
        if rate is not None:
            value = rate * (value - jnp.einsum("...dv,...d->...v", state, key))
        state = state + jnp.einsum("...d,...v->...dv", key, value)
        return state, jnp.einsum("...dv,...d->...v", state, query)

    time_first = jax.tree.map(lambda array: jnp.moveaxis(array, -2, 0), tokens)
    state, outputs = over_time(step, empty_state(tokens) if state is None else state, time_first)
    return jnp.moveaxis(outputs, 0, -2), state


def chunked(
    tokens: Tokens, size: int, state: Float[Array, "*b d v"] | None = None
) -> tuple[Float[Array, "*b t v"], Float[Array, "*b d v"]]:
    """What every token reads, and the state after the last, in blocks of equal length, of at most `size` tokens.

    With sums b_i of a block's log decays, q̃ = q eᵇ and k̃ = k e⁻ᵇ: o = q̃ S + (q̃ k̃ᵀ ∘ causal) v, and the state is then
    e^{b_last} (S + k̃ᵀ v) (Yang et al. 2023, §4). The sums of a block must be more than −`MOST_DECAY`.
    """
    _require_either(tokens)
    length = tokens.query.shape[-2]
    blocks = jax.tree.map(lambda array: _blocks(array, size), tokens)
    state, outputs = over_time(_block, empty_state(tokens) if state is None else state, blocks)
    joined = jnp.moveaxis(outputs, 0, -3)
    return joined.reshape(*joined.shape[:-3], -1, joined.shape[-1])[..., :length, :], state


def bidirectional(tokens: Tokens) -> Float[Array, "*b t v"]:
    """What every token reads of the state after all tokens, without decay: o = q Σ_j k_j v_jᵀ."""
    return tokens.query @ (jnp.swapaxes(tokens.key, -1, -2) @ tokens.value)


def with_sum(value: Float[Array, "*b t v"]) -> Float[Array, "*b t {value.shape[-1]+1}"]:
    """Values with a 1 as their last feature: what is read then ends in the sum of the weights."""
    return jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)


def over_sum(outputs: Float[Array, "*b t v"]) -> Float[Array, "*b t {outputs.shape[-1]-1}"]:
    """What was read of values `with_sum`, divided by the sum of weights (Katharopoulos et al. 2020, eq. 5).

    Where that is 0, because no key was read, it is 0.
    """
    total = outputs[..., -1:]
    return jnp.where(total == 0, 0, outputs[..., :-1] / jnp.where(total == 0, 1, total))


def retention_decays(heads: int) -> Float[Array, " {heads}"]:
    """1 − 2^(−5 − h) for head h (Sun et al. 2023, §2.2)."""
    return 1 - 2.0 ** (-5 - jnp.arange(heads))


def gated_log_decays(gates: Float[Array, "*b t d"]) -> Float[Array, "*b t d"]:
    """ln σ(g)^(1/16) of what a token says, so that a state forgets slowly at first (Yang et al. 2023, §4.4)."""
    return jax.nn.log_sigmoid(gates) / SLOWNESS


def _require_either(tokens: Tokens) -> None:
    if tokens.log_decay is not None and tokens.rate is not None:
        raise ValueError("log_decay and rate: give one of them, or take `recurrent`, which has both.")


def _block(state: Array, tokens: Tokens) -> tuple[Array, Array]:
    query, key, value, log_decay, rate = tokens
    last: Array | float = 1.0
    if log_decay is not None:
        sums = jnp.cumsum(log_decay, axis=-2)
        query, key, last = query * jnp.exp(sums), key * jnp.exp(-sums), jnp.exp(sums[..., -1, :, None])
    if rate is not None:
        value = _corrections(key, value - key @ state, rate)
    weights = _where(jnp.tril(jnp.ones((query.shape[-2],) * 2, bool)), query @ jnp.swapaxes(key, -1, -2))
    return last * (state + jnp.swapaxes(key, -1, -2) @ value), query @ state + weights @ value


def _corrections(key: Array, value: Array, rate: Array) -> Array:
    """u with u_i = β_i (v_i − Σ_{j < i} (k_iᵀk_j) u_j): what the delta rule writes, where a block finds nothing."""
    earlier = jnp.tril(jnp.ones((key.shape[-2],) * 2, bool), -1)
    lower = rate * _where(earlier, key @ jnp.swapaxes(key, -1, -2))
    return jax.scipy.linalg.solve_triangular(
        lower + jnp.eye(key.shape[-2], dtype=lower.dtype)[(None,) * (lower.ndim - 2)],
        rate * value,
        lower=True,
        unit_diagonal=True,
    )


def _where(mask: Array, weights: Array) -> Array:
    return jnp.where(mask[(None,) * (weights.ndim - mask.ndim)], weights, 0)


def _blocks(array: Array, size: int) -> Array:
    """`[..., T, F]` as the fewest blocks `[blocks, ..., ≤ size, F]` of equal length, zeros after the last token."""
    *batch, length, features = array.shape
    count = max(-(-length // size), 1)
    padded = jnp.pad(array, [(0, 0)] * len(batch) + [(0, -length % count), (0, 0)])
    return jnp.moveaxis(padded.reshape(*batch, count, -1, features), -3, 0)
