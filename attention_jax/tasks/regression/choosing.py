"""Estimators on draws: their best numbers, and what they say with them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from attention_jax.data.functions import Draw
from attention_jax.tasks.regression.estimators import Estimator

TOGETHER = 100  # draws that are in memory at once

Estimators = Mapping[str, Estimator]
Numbers = dict[str, Float[Array, "kinds numbers"]]


def best_numbers(estimators: Estimators, drawing: Callable[[Array], Draw], keys: Key[Array, " draws"]) -> Numbers:
    """Each estimator's numbers whose mean squared error over these draws is least, for each kind of function.

    An estimator then knows where draws come from, as a model that is trained on draws does, and nothing of another one.
    Numbers with which it diverges are never the best.
    """
    tried = {name: estimator for name, estimator in estimators.items() if estimator.numbers}

    def of_draw(key):
        key_drawn, key = jax.random.split(key)
        drawn = drawing(key_drawn)

        def error(estimator, numbers):
            estimate = estimator.apply(key, drawn.query, drawn.key, drawn.value, *numbers)
            return jnp.mean(jnp.square(estimate - drawn.truth), axis=0)

        return {name: jax.vmap(functools.partial(error, one))(one.choices) for name, one in tried.items()}

    kinds = jax.eval_shape(drawing, keys[0]).value.shape[-1]
    errors = {name: jnp.mean(error, axis=0) for name, error in over_draws(of_draw, keys).items()}
    errors = {name: jnp.where(jnp.isnan(error), jnp.inf, error) for name, error in errors.items()}
    best = {name: tried[name].choices[jnp.argmin(error, axis=0)] for name, error in errors.items()}
    return {name: best.get(name, jnp.zeros((kinds, 0))) for name in estimators}


def estimates(
    estimators: Estimators, key: Key[Array, ""], drawn: Draw, numbers: Numbers
) -> dict[str, Float[Array, "q kinds"]]:
    """What each estimator says of a draw's queries, with the numbers that it has for each kind of function."""

    def of_kind(estimator, value, chosen):
        return estimator.apply(key, drawn.query, drawn.key, value[:, None], *chosen)[:, 0]

    return {
        name: jax.vmap(functools.partial(of_kind, one), (1, 0), 1)(drawn.value, numbers[name])
        for name, one in estimators.items()
    }


def over_draws(of_draw: Callable[[Array], Any], keys: Key[Array, " draws"]) -> Any:
    """`of_draw(key)` of every draw, as many side by side as memory is meant for."""
    return jax.lax.map(of_draw, keys, batch_size=min(TOGETHER, len(keys)))
