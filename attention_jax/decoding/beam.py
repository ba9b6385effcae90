"""Beam search over `step(tokens, cache) → (logits, cache)`, in one compiled loop that ends early."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention_jax.decoding.choosing import top_k, without
from attention_jax.ops.cache import Cache, side_by_side

NEVER = -1e30  # a score below every other; sums with it stay finite


class Hypotheses(NamedTuple):
    """The best translations of each sentence, best first: words, the end, padding.

    `scores` are log-probabilities in nats divided by the length penalty; a hypothesis that was not found has `NEVER`.
    """

    tokens: Int[Array, "batch beams length"]
    scores: Float[Array, "batch beams"]


class _Search(NamedTuple):
    position: Int[Array, ""]
    last: Int[Array, "batch beams"]
    tokens: Int[Array, "batch beams length"]
    log_probs: Float[Array, "batch beams"]
    done: Hypotheses
    cache: Cache


def beam_search(
    step: Callable[[Int[Array, " batch"], Cache], tuple[Array, Cache]],
    cache: Cache,
    is_empty: Bool[Array, " batch"],
    max_length: int,
    *,
    beams: int,
    length_penalty: Float[Array, ""] | float,
    bos: int,
    eos: int,
    pad: int,
) -> Hypotheses:
    """The `beams` best hypotheses by log p / lp(n), lp(n) = ((5 + n) / 6)^α (Wu et al. 2016, eq. 14).

    n counts words and the end. A hypothesis that ends among the `beams` likeliest is set aside, and the beam is filled
    again with the likeliest that have not ended. The search of a sentence is over when `beams` hypotheses have ended,
    so that a beam of one is greedy decoding. A hypothesis that has not ended after `max_length` words is scored as it
    is. `bos` and `pad` are never chosen; their probability is lost. Beams share the cache's memory. `is_empty` marks
    rows without a sentence, for which the loop does not wait.
    """
    batch = is_empty.shape[0]

    def unfinished(search):
        return (search.position < max_length) & jnp.any(_is_open(search.log_probs).any(-1) & ~is_empty)

    def advance(search):
        logits, cache = _step_beams(step, search.last, search.cache)
        log_probs, parent, word = _likeliest(search.log_probs, logits, 2 * beams, never=(bos, pad))
        tokens = _pick(search.tokens, parent).at[:, :, search.position].set(word)
        is_end, is_likeliest = word == eos, jnp.arange(2 * beams) < beams  # half of them may end
        scores = _penalized(log_probs, search.position + 1, length_penalty)
        done = _best(search.done, Hypotheses(tokens, jnp.where(is_end & is_likeliest[None, :], scores, NEVER)), beams)
        is_over = _is_open(done.scores).all(-1, keepdims=True)
        log_probs, kept = jax.lax.top_k(jnp.where(is_end | is_over, NEVER, jnp.maximum(log_probs, NEVER)), beams)
        state = jax.tree.map(lambda leaf: _pick(leaf, _pick(parent, kept)), cache.state)
        return _Search(
            position=search.position + 1,
            last=_pick(word, kept),
            tokens=_pick(tokens, kept),
            log_probs=log_probs,
            done=done,
            cache=cache._replace(state=state),
        )

    found = jax.lax.while_loop(unfinished, advance, _start(cache, batch, beams, max_length, bos, pad))
    still_open = Hypotheses(found.tokens, _penalized(found.log_probs, max_length, length_penalty))
    return _best(found.done, still_open, beams)


def _start(cache: Cache, batch: int, beams: int, max_length: int, bos: int, pad: int) -> _Search:
    tokens = jnp.full((batch, beams, max_length), pad, jnp.int32)
    first = jnp.where(jnp.arange(beams) == 0, 0.0, NEVER)  # all beams are equal at first: only one counts
    return _Search(
        position=jnp.zeros((), jnp.int32),
        last=jnp.full((batch, beams), bos, jnp.int32),
        tokens=tokens,
        log_probs=jnp.broadcast_to(first[None, :], (batch, beams)),
        done=Hypotheses(tokens, jnp.full((batch, beams), NEVER)),
        cache=side_by_side(cache, beams),
    )


def _step_beams(step: Callable, tokens: Int[Array, "batch beams"], cache: Cache) -> tuple[Array, Cache]:
    """`step` for every beam: logits `[batch, beams, vocabulary]`. A model that keeps a history reads them together."""
    if cache.history is not None:
        return step(tokens, cache)

    def step_beam(tokens, state):
        logits, advanced = step(tokens, cache._replace(state=state))
        return logits, advanced.state, advanced.cursor

    logits, state, cursor = jax.vmap(step_beam, in_axes=1, out_axes=(1, 1, None))(tokens, cache.state)
    return logits, cache._replace(state=state, cursor=cursor)


def _likeliest(
    log_probs: Float[Array, "batch beams"],
    logits: Float[Array, "batch beams words"],
    count: int,
    never: tuple[int, ...],
) -> tuple[Array, Array, Array]:
    """The `count` likeliest continuations: their log-probabilities, the beams that they continue, their words."""
    logits = logits.astype(jnp.float32)
    offsets = log_probs - jax.nn.logsumexp(logits, axis=-1)  # one a beam: the probability of each word is not written
    scores = without(logits, *never) + offsets[..., None]
    log_probs, choice = top_k(scores.reshape(len(scores), -1), count)
    parent, word = jnp.divmod(choice, logits.shape[-1])
    return log_probs, parent, word


def _best(some: Hypotheses, others: Hypotheses, beams: int) -> Hypotheses:
    tokens, scores = (jnp.concatenate(pair, axis=1) for pair in zip(some, others, strict=True))
    scores, indices = jax.lax.top_k(scores, beams)
    return Hypotheses(_pick(tokens, indices), scores)


def _is_open(scores: Float[Array, "..."]) -> Bool[Array, "..."]:
    return scores > NEVER / 2


def _penalized(log_probs: Array, words: Array | int, length_penalty: Array | float) -> Array:
    penalty = ((5 + jnp.asarray(words, jnp.float32)) / 6) ** length_penalty
    return jnp.where(_is_open(log_probs), log_probs / penalty, NEVER)


def _pick(leaf: Array, indices: Int[Array, "batch chosen"]) -> Array:
    """leaf[b, indices[b, i]] for every b and i."""
    return jnp.take_along_axis(leaf, indices.reshape(*indices.shape, *(1,) * (leaf.ndim - 2)), axis=1)
