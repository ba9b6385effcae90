"""Several models that decode together: a word's probability is the mean over them (Sutskever et al. 2014, §3.6)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.cache import Cache

Step = Callable[[Int[Array, " batch"], Cache], tuple[Array, Cache]]


def join_caches(caches: Sequence[Cache]) -> Cache:
    """The members' caches as one cache; all members have read the same words."""
    return Cache(tuple(c.memory for c in caches), tuple(c.state for c in caches), caches[0].cursor)


def join_steps(steps: Sequence[Step]) -> Step:
    """One step of all members, over the cache of `join_caches`."""

    def step(tokens, cache):
        parts = zip(steps, cache.memory, cache.state, strict=True)
        stepped = [member(tokens, Cache(memory, state, cache.cursor)) for member, memory, state in parts]
        logits = mean_log_probs([logits for logits, _ in stepped])
        return logits, Cache(cache.memory, tuple(after.state for _, after in stepped), stepped[0][1].cursor)

    return step


def mean_log_probs(logits: Sequence[Float[Array, "*batch v"]]) -> Float[Array, "*batch v"]:
    """log(1/n Σ_i softmax(logits_i)) over n members; the logits themselves if there is one member."""
    if len(logits) == 1:
        return logits[0]
    log_probs = jax.nn.log_softmax(jnp.stack(logits).astype(jnp.float32), axis=-1)
    return jax.nn.logsumexp(log_probs, axis=0) - jnp.log(len(logits))
