"""Decoding word by word over `step(tokens, cache) → (logits, cache)`, in one compiled loop with early exit."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Step = Callable[[Int[Array, " batch"], Any], tuple[Array, Any]]


def greedy(
    step: Step, cache: Any, is_done: Bool[Array, " batch"], max_length: int, *, bos: int, eos: int, pad: int
) -> Int[Array, "batch max_length"]:
    """The likeliest next word, again and again, up to and with `eos`; `pad` after it."""

    def choose(logits, position):
        del position
        return jnp.argmax(logits, axis=-1)

    return decode(step, cache, is_done, max_length, choose, bos=bos, eos=eos, pad=pad)


def decode(
    step: Step,
    cache: Any,
    is_done: Bool[Array, " batch"],
    max_length: int,
    choose: Callable[[Array, Int[Array, ""]], Int[Array, " batch"]],
    *,
    bos: int,
    eos: int,
    pad: int,
) -> Int[Array, "batch max_length"]:
    """The words that `choose(logits, position)` picks, up to and with `eos`; `pad` after it.

    `bos` and `pad` are never picked, whatever the model gives them. Stops when every sentence has ended, or after
    `max_length` words. `is_done` marks rows that hold no sentence and are not waited for.
    """

    def unfinished(carry):
        position, _, _, is_done, _ = carry
        return (position < max_length) & ~jnp.all(is_done)

    def advance(carry):
        position, tokens, outputs, is_done, cache = carry
        logits, cache = step(tokens, cache)
        tokens = jnp.where(is_done, pad, choose(without(logits, bos, pad), position)).astype(jnp.int32)
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


def without(scores: Float[Array, "*batch v"], *words: int) -> Float[Array, "*batch v"]:
    """The scores, −inf of these words."""
    return jnp.where(jnp.isin(jnp.arange(scores.shape[-1]), jnp.array(words)), -jnp.inf, scores)
