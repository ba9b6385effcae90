"""Choosing the next word: the likeliest, or several of them, in the order that a CPU computes fast."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

GROUP = 32  # scores that are compared by their largest first


def likeliest(logits: Float[Array, "batch v"], position: Int[Array, ""]) -> Int[Array, " batch"]:
    """The word with the largest logit; the first of several equal ones."""
    del position
    highest = jnp.max(logits, axis=-1, keepdims=True)  # two plain reductions: XLA's argmax is not vectorized on a CPU
    index = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    return jnp.min(jnp.where(logits >= highest, index, logits.shape[-1] - 1), axis=-1)


def top_k(scores: Float[Array, "*batch v"], count: int) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"]]:
    """`jax.lax.top_k`: the largest scores and their indices, the first of equal ones first; all if there are fewer.

    The `count` largest are in the `count` groups whose largest are largest, so that only these are sorted.
    """
    size = scores.shape[-1]
    if size <= count * GROUP:
        return jax.lax.top_k(scores, min(count, size))
    padding = ((0, 0),) * (scores.ndim - 1) + ((0, -size % GROUP),)
    groups = jnp.pad(scores, padding, constant_values=-jnp.inf).reshape(*scores.shape[:-1], -1, GROUP)
    _, chosen = jax.lax.top_k(jnp.max(groups, axis=-1), count)
    chosen = jnp.sort(chosen, axis=-1)  # so that equal scores stay in their order
    kept = jnp.take_along_axis(groups, chosen[..., None], axis=-2).reshape(*scores.shape[:-1], -1)
    largest, place = jax.lax.top_k(kept, count)
    group = jnp.take_along_axis(chosen, place // GROUP, axis=-1)
    return largest, group * GROUP + place % GROUP


def without(scores: Float[Array, "*batch v"], *words: int) -> Float[Array, "*batch v"]:
    """The scores, with −inf for these words."""
    return jnp.where(jnp.isin(jnp.arange(scores.shape[-1]), jnp.array(words)), -jnp.inf, scores)
