"""Several models that decode as one: each word's probability is the mean of theirs (Sutskever et al. 2014, §3.6)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.cache import Cache

Step = Callable[[Int[Array, " batch"], Cache], tuple[Array, Cache]]


def join_caches(caches: Sequence[Cache]) -> Cache:
    """The caches of all members as one; they have read the same words."""
    return Cache(tuple(c.memory for c in caches), tuple(c.state for c in caches), caches[0].cursor)


def join_steps(steps: Sequence[Step]) -> Step:
    """One step of all members, over a cache of `join_caches`."""

    def step(tokens, cache):
        parts = zip(steps, cache.memory, cache.state, strict=True)
        found = [one(tokens, Cache(memory, state, cache.cursor)) for one, memory, state in parts]
        logits = mean_log_probs([logits for logits, _ in found])
        return logits, Cache(cache.memory, tuple(after.state for _, after in found), found[0][1].cursor)

    return step


def mean_log_probs(logits: Sequence[Float[Array, "*batch v"]]) -> Float[Array, "*batch v"]:
    """log 1/n Σ_i softmax(logits_i); one member's logits as they are."""
    if len(logits) == 1:
        return logits[0]
    log_probs = jax.nn.log_softmax(jnp.stack(logits).astype(jnp.float32), axis=-1)
    return jax.nn.logsumexp(log_probs, axis=0) - jnp.log(len(logits))
