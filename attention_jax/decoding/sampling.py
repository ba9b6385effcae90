"""Decoding by drawing each next word, in one compiled loop with early exit."""

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
    """Words drawn from softmax(logits / temperature) of the `top_k` likeliest (0: all), of mass `top_p` at least.

    Each sentence has a key of its own, so that what is drawn for it does not depend on its batch
    (Fan et al. 2018, §5.4; Holtzman et al. 2020, §3.1).
    """

    return decode(step, cache, is_done, max_length, drawing(keys, temperature, top_k, top_p), bos=bos, eos=eos, pad=pad)


def drawing(
    keys: Key[Array, " batch"], temperature: Float[Array, ""] | float, top_k: int, top_p: Float[Array, ""] | float
) -> Choose:
    """What draws each text's next word, as `sample` says; a word depends on its text's key and its place alone."""

    def choose(logits, position):
        kept = keep_likeliest(logits.astype(jnp.float32) / temperature, top_k, top_p)
        return jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, position), row))(keys, kept)

    return choose


def keep_likeliest(
    logits: Float[Array, "*batch v"], top_k: int, top_p: Float[Array, ""] | float
) -> Float[Array, "*batch v"]:
    """The logits, −inf but for the `top_k` largest (0: all) and the fewest of these whose softmax sums to `top_p`."""
    size = logits.shape[-1]
    ordered, places = jax.lax.top_k(logits, min(top_k or size, size))
    probabilities = jax.nn.softmax(ordered, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities  # the mass of likelier words
    ordered = jnp.where((before < top_p) | (before == 0), ordered, -jnp.inf)
    return jnp.put_along_axis(jnp.full_like(logits, -jnp.inf), places, ordered, axis=-1, inplace=False)
