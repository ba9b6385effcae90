"""Held-out prompts, and what the estimators answer them with."""

import functools
from typing import NamedTuple

import jax
from jaxtyping import Array, Float
from ml_collections import FrozenConfigDict

from attention_jax.data.functions import Draw
from attention_jax.tasks.in_context.drawing import drawn, prompts_of
from attention_jax.tasks.regression.choosing import best_numbers, estimates, over_draws
from attention_jax.tasks.regression.estimators import chosen

HELD_OUT = 1_000_000  # folded into the key of held-out draws; no training step folds in so much
CHOOSING = 1_000  # folded into a key for the draws on which estimators' numbers are chosen; more than there are pairs
QUERIES = 8  # of each of those


class HeldOut(NamedTuple):
    """Prompts, the noiseless truth of their queries, and each estimator's answers."""

    vectors: Float[Array, "draws t f"]
    truth: Float[Array, " draws"]
    answers: dict[str, Float[Array, " draws"]]


@functools.lru_cache(maxsize=16)
def held_out(data: FrozenConfigDict, evaluate: FrozenConfigDict, pairs: int) -> HeldOut:
    """`evaluate.examples` draws of so many pairs and a query, as `data` says; models of any size share them."""
    estimators, key = chosen(evaluate.estimators), jax.random.fold_in(jax.random.key(evaluate.seed), HELD_OUT)
    choosing = functools.partial(drawn, data, pairs=pairs, queries=QUERIES)

    @jax.jit
    def answered(keys: Array, others: Array) -> HeldOut:
        numbers = best_numbers(estimators, choosing, others)

        def of_draw(key: Array) -> tuple[Draw, dict[str, Array]]:
            key_drawn, key = jax.random.split(key)
            one = drawn(data, key_drawn, pairs, 1)
            return one, {name: found[0, 0] for name, found in estimates(estimators, key, one, numbers).items()}

        draws, answers = over_draws(of_draw, keys)
        return HeldOut(prompts_of(data, draws), draws.truth[:, 0, 0], answers)

    keys = jax.random.split(jax.random.fold_in(key, pairs), evaluate.examples)
    return answered(keys, jax.random.split(jax.random.fold_in(key, CHOOSING + pairs), evaluate.choosing))
