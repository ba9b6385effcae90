"""Decoding by drawing each next word at random, in one compiled loop that ends early."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from attention_jax.decoding.greedy import Choose, Step, decode


def sample(
    step: Step,
    cache: Any,
    is_done: Bool[Array, " batch"],
    max_length: int,
    keys: Key[Array, " batch"],
    *,
    temperature: Float[Array, ""] | float = 1.0,
    top_k: int = 0,
    top_p: Float[Array, ""] | float = 1.0,
    bos: int,
    eos: int,
    pad: int,
) -> Int[Array, "batch max_length"]:
    """Words drawn from softmax(logits / temperature), restricted as in `keep_likeliest`.

    Each sentence has its own key, so that its words do not depend on the rest of the batch. Fan et al. 2018, §5.4;
    Holtzman et al. 2020, §3.1. Raises ValueError for a temperature that is a number of 0 or less: `greedy` takes the
    likeliest.
    """

    return decode(step, cache, is_done, max_length, drawing(keys, temperature, top_k, top_p), bos=bos, eos=eos, pad=pad)


def drawing(
    keys: Key[Array, " batch"], temperature: Float[Array, ""] | float, top_k: int, top_p: Float[Array, ""] | float
) -> Choose:
    """The function that draws each text's next word, as in `sample`, by the text's key and the word's position."""
    if isinstance(temperature, (int, float)) and temperature <= 0:
        raise ValueError(f"temperature={temperature}: needs more than 0; greedy decoding takes the likeliest word.")

    def choose(logits, position):
        kept = keep_likeliest(logits.astype(jnp.float32) / temperature, top_k, top_p)
        return jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, position), row))(keys, kept)

    return choose


def keep_likeliest(
    logits: Float[Array, "*batch v"], top_k: int, top_p: Float[Array, ""] | float
) -> Float[Array, "*batch v"]:
    """The `top_k` largest logits (0: all), of these the fewest whose softmax sums to `top_p`; −inf for the others."""
    size = logits.shape[-1]
    ordered, words = jax.lax.top_k(logits, min(top_k or size, size))
    probabilities = jax.nn.softmax(ordered, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities  # the mass of likelier words
    is_kept = (before < top_p) | (before == 0) | (jnp.asarray(top_p) >= 1)  # sums of 1 may be rounded up
    ordered = jnp.where(is_kept, ordered, -jnp.inf)
    return jnp.put_along_axis(jnp.full_like(logits, -jnp.inf), words, ordered, axis=-1, inplace=False)
