"""The problem and the estimators that a config names, and each estimator's error on every draw."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from ml_collections import ConfigDict

from attention_jax.data.regression import PROBLEMS, Problem
from attention_jax.errors import UserError
from attention_jax.evaluation.statistics import metric_interval
from attention_jax.models.kernel_regression import Estimator, estimator
from attention_jax.tasks.sections import of_section


def problem_of(config: ConfigDict, noise: Array | float | None = None) -> Problem:
    """The data set that `config.data` names, with another `noise` if it is given."""
    kwargs = config.data.to_dict()
    name = kwargs.pop("name")
    if name not in PROBLEMS:
        raise UserError(f"config.data.name={name!r}: choose one of {', '.join(PROBLEMS)}.")
    for key, value, least in (("data.n", config.data.n, 2), ("data.noise", config.data.noise, 0)):
        if value < least:
            raise UserError(f"config.{key}={value}: needs {least} or more.")
    return PROBLEMS[name](**kwargs if noise is None else kwargs | {"noise": noise})


def estimators_of(config: ConfigDict, width: Array | float | None = None) -> dict[str, Estimator]:
    """The estimators that `config.estimators` names; "kernel" is `config.kernel`, with another `width` if given."""
    for key, value, least in (("draws", config.draws, 1), ("learned.steps", config.learned.steps, 1)):
        if value < least:
            raise UserError(f"config.{key}={value}: needs {least} or more.")
    if not config.estimators:
        raise UserError("config.estimators is empty: name at least one.")
    if config.kernel.width <= 0:
        raise UserError(f"config.kernel.width={config.kernel.width}: needs more than 0.")
    kernel = (config.kernel.name, config.kernel.width if width is None else width)
    with of_section("config"):
        return {name: estimator(name, kernel=kernel, **config.learned) for name in config.estimators}


def keys_of(config: ConfigDict) -> Key[Array, " draws"]:
    """A random key for each draw of every seed, along the first axis."""
    return jnp.concatenate([jax.random.split(jax.random.key(seed), config.draws) for seed in config.seeds])


def arguments_of(config: ConfigDict) -> tuple[Array, Array, Array]:
    """A config's dynamic values: the keys of draws, the noise, the kernel's width."""
    return keys_of(config), jnp.float32(config.data.noise), jnp.float32(config.kernel.width)


def squared_errors(
    config: ConfigDict, keys: Key[Array, " draws"], noise: Array, width: Array
) -> dict[str, Float[Array, " draws"]]:
    """Each estimator's mean squared error against the noiseless truth on every draw."""
    problem, estimators = problem_of(config, noise), estimators_of(config, width)

    def measure(key):
        sample = problem.draw(key)
        return {
            name: jnp.mean(jnp.square(estimate(*sample, problem.queries) - problem.truth))
            for name, estimate in estimators.items()
        }

    return jax.vmap(measure)(keys)


def summary(errors: Float[np.ndarray, " draws"]) -> dict:
    """The mean over draws, their standard deviation, and the mean's 95% interval."""
    mean, low, high = metric_interval("mse_mean", errors)
    spread = float(np.std(errors, ddof=1, dtype=np.float64)) if len(errors) > 1 else math.nan
    return {"mse_mean": mean, "mse_std": spread, "mse_ci95": [low, high]}
