"""Several models that decode together: a word's probability is the mean over them (Sutskever et al. 2014, §3.6)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.cache import Cache

Step = Callable[[Int[Array, " batch"], Cache], tuple[Array, Cache]]


def join_caches(caches: Sequence[Cache]) -> Cache:
    """The members' caches as one cache; all members have read the same words."""
    has_history = caches[0].history is not None
    return Cache(
        tuple(cache.memory for cache in caches),
        tuple(cache.state for cache in caches),
        caches[0].cursor,
        tuple(cache.history for cache in caches) if has_history else None,
    )


def join_steps(steps: Sequence[Step]) -> Step:
    """One step of all members, over the cache of `join_caches`."""

    def step(tokens, cache):
        histories = cache.history or (None,) * len(steps)
        parts = zip(steps, cache.memory, cache.state, histories, strict=True)
        stepped = [member(tokens, Cache(memory, state, cache.cursor, own)) for member, memory, state, own in parts]
        logits, read = zip(*stepped, strict=True)
        return mean_log_probs(logits), join_caches(read)._replace(memory=cache.memory)

    return step


def mean_log_probs(logits: Sequence[Float[Array, "*batch v"]]) -> Float[Array, "*batch v"]:
    """log(1/n Σ_i softmax(logits_i)) over n members; the logits themselves if there is one member."""
    if len(logits) == 1:
        return logits[0]
    log_probs = jax.nn.log_softmax(jnp.stack(logits).astype(jnp.float32), axis=-1)
    return jax.nn.logsumexp(log_probs, axis=0) - jnp.log(len(logits))
