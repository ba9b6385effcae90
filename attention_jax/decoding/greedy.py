"""Decoding word by word over `step(tokens, cache) → (logits, cache)`, in one compiled loop that ends early."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention_jax.decoding.choosing import likeliest, without

Step = Callable[[Int[Array, " batch"], Any], tuple[Array, Any]]
Choose = Callable[[Float[Array, "batch v"], Int[Array, ""]], Int[Array, " batch"]]  # (logits, words so far) → words


class Writing(NamedTuple):
    """Texts that are being written: each one's last word, which the model has not read yet, and the cache before it.

    `is_done` marks texts that have ended, and rows without a text. `position` counts the words that were chosen.
    """

    tokens: Int[Array, " batch"]
    cache: Any
    is_done: Bool[Array, " batch"]
    position: Int[Array, ""]


def greedy(
    step: Step, cache: Any, is_done: Bool[Array, " batch"], max_length: int, *, bos: int, eos: int, pad: int
) -> Int[Array, "batch max_length"]:
    """The likeliest next word each time: words, `eos`, `pad`."""
    return decode(step, cache, is_done, max_length, likeliest, bos=bos, eos=eos, pad=pad)


def decode(
    step: Step,
    cache: Any,
    is_done: Bool[Array, " batch"],
    max_length: int,
    choose: Choose,
    *,
    bos: int,
    eos: int,
    pad: int,
) -> Int[Array, "batch max_length"]:
    """The words that `choose(logits, position)` picks: words, `eos`, `pad`.

    `bos` and `pad` are never picked, whatever their logits. The loop ends when every sentence has ended, or after
    `max_length` words. `is_done` marks rows without a sentence, for which it does not wait.
    """
    start = Writing(jnp.full(is_done.shape, bos, jnp.int32), cache, is_done, jnp.zeros((), jnp.int32))
    return write(step, start, max_length, choose, eos=eos, pad=pad, never=(bos, pad))[0]


def write(
    step: Step,
    start: Writing,
    size: int,
    choose: Choose,
    *,
    eos: int,
    pad: int,
    never: tuple[int, ...],
    at_most: Int[Array, ""] | int | None = None,
) -> tuple[Int[Array, "batch size"], Writing]:
    """Up to `size` more words of each text, with `pad` after its `eos`; and the texts with these words.

    Words of `never` are not picked. The loop ends when every text has ended, or after `at_most` words, a number that
    may be traced.
    """
    most = size if at_most is None else jnp.minimum(at_most, size)

    def unfinished(carry):
        _, writing = carry
        return (writing.position - start.position < most) & ~jnp.all(writing.is_done)

    def advance(carry):
        outputs, (tokens, cache, is_done, position) = carry
        logits, cache = step(tokens, cache)
        tokens = jnp.where(is_done, pad, choose(without(logits, *never), position)).astype(jnp.int32)
        outputs = jax.lax.dynamic_update_slice_in_dim(outputs, tokens[:, None], position - start.position, axis=1)
        return outputs, Writing(tokens, cache, is_done | (tokens == eos), position + 1)

    empty = jnp.full((len(start.tokens), size), pad, jnp.int32)
    return jax.lax.while_loop(unfinished, advance, (empty, start))
