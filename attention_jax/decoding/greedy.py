"""Greedy decoding over `step(tokens, cache) → (logits, cache)`, in one compiled loop with early exit."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def greedy(
    step: Callable[[Int[Array, " batch"], Any], tuple[Array, Any]],
    cache: Any,
    is_done: Bool[Array, " batch"],
    max_length: int,
    *,
    bos: int,
    eos: int,
    pad: int,
) -> Int[Array, "batch max_length"]:
    """The likeliest next word, again and again, up to and with `eos`; `pad` after it.

    Stops when every sentence has ended, or after `max_length` words. `is_done` marks rows that hold no
    sentence and are not waited for.
    """

    def unfinished(carry):
        position, _, _, is_done, _ = carry
        return (position < max_length) & ~jnp.all(is_done)

    def advance(carry):
        position, tokens, outputs, is_done, cache = carry
        logits, cache = step(tokens, cache)
        tokens = jnp.where(is_done, pad, jnp.argmax(logits, axis=-1)).astype(jnp.int32)
        outputs = jax.lax.dynamic_update_slice_in_dim(outputs, tokens[:, None], position, axis=1)
        return position + 1, tokens, outputs, is_done | (tokens == eos), cache

    batch = is_done.shape[0]
    start = (
        jnp.zeros((), jnp.int32),
        jnp.full((batch,), bos, jnp.int32),
        jnp.full((batch, max_length), pad, jnp.int32),
        is_done,
        cache,
    )
    return jax.lax.while_loop(unfinished, advance, start)[2]
