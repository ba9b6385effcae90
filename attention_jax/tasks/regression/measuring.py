"""Errors by n, noise and dimension; how exactly attention is kernel regression; and random features by their count."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from ml_collections import ConfigDict

from attention_jax.data.functions import KINDS, Draw, draw
from attention_jax.errors import UserError
from attention_jax.evaluation.statistics import fitted_powers, mean_interval, metric_interval
from attention_jax.tasks.regression.choosing import Estimators, Numbers, best_numbers, estimates, over_draws
from attention_jax.tasks.regression.estimators import (
    attention,
    chosen,
    dot_attention_with_norms,
    nadaraya_watson,
    random_features,
)

CHOOSING = 1  # folded into a seed's key for the draws on which numbers are chosen
GROUPS = 20  # of draws, in each of which the exponent is fitted


class Setting(NamedTuple):
    """How many pairs a draw has, of how many dimensions, and the deviation of their noise."""

    n: int
    dimensions: int
    noise: float


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    chosen(config.estimators)
    for name, least in (("draws", 2), ("choosing", 1), ("queries", 1)):
        if config[name] < least:
            raise UserError(f"config.{name}={config[name]}: needs {least} or more.")
    for name, least in (("n", 2), ("dimensions", 1), ("noise", 0)):
        for section in ("data", "vary"):
            value = config[section][name]
            values = value if section == "vary" else (value,)
            if not values or min(values) < least:
                raise UserError(f"config.{section}.{name}={value}: needs {least} or more.")
    for section in ("identity", "features"):
        if not config[section].widths or min(config[section].widths) <= 0:
            raise UserError(f"config.{section}.widths={config[section].widths}: needs numbers more than 0.")
    if len(set(config.features.counts)) < 2 or min(config.features.counts) < 1:
        raise UserError(f"config.features.counts={config.features.counts}: needs two or more, to fit an exponent.")


def measure(config: ConfigDict) -> dict[str, Any]:
    """All that a run measures; `estimators` are their errors at `config.data`, by the kind of function."""
    base, varied = Setting(**config.data), _varied(config)
    every = [base, *(setting for by_value in varied.values() for setting in by_value.values())]
    errors = {setting: _errors_at(config, setting) for setting in dict.fromkeys(every)}
    rows = [
        {"varies": name, "value": value, "function": kind, "estimator": estimator, **found}
        for name, by_value in varied.items()
        for value, setting in by_value.items()
        for kind, of_kind in errors[setting].items()
        for estimator, found in of_kind.items()
    ]
    return {"estimators": errors[base], "errors": rows, "identity": identity(config), "features": features(config)}


def _varied(config: ConfigDict) -> dict[str, dict[float, Setting]]:
    """By what varies and its values, that of `config.data` among them, the settings that are measured."""
    base = Setting(**config.data)
    return {
        name: {value: base._replace(**{name: value}) for value in sorted({*values, base._asdict()[name]})}
        for name, values in config.vary.items()
    }


def _errors_at(config: ConfigDict, setting: Setting) -> dict[str, Any]:
    """Each estimator's error and its numbers, by the kind of function."""
    program = _program(tuple(config.estimators), setting.n, setting.dimensions, config.queries)
    keys, others = keys_of(config.seeds, config.draws), keys_of(config.seeds, config.choosing, CHOOSING)
    found, numbers = jax.device_get(program(keys, others, jnp.float32(setting.noise)))
    return {
        kind: {
            name: summary(error[:, index]) | {"numbers": numbers[name][index].astype(float).round(6).tolist()}
            for name, error in found.items()
        }
        for index, kind in enumerate(KINDS)
    }


@functools.cache
def _program(names: tuple[str, ...], n: int, dimensions: int, queries: int) -> Any:
    """The one program of a shape: (keys of draws, keys of those to choose on, noise) → errors of each draw, numbers."""
    estimators = chosen(names)

    def measured(keys: Key[Array, " draws"], others: Key[Array, " choosing"], noise: Array):
        drawing = functools.partial(draw, n=n, queries=queries, dimensions=dimensions, noise=noise)
        numbers = best_numbers(estimators, drawing, others)
        return over_draws(functools.partial(_squared, estimators, drawing, numbers), keys), numbers

    return jax.jit(measured)


def _squared(
    estimators: Estimators, drawing: Callable[[Array], Draw], numbers: Numbers, key: Key[Array, ""]
) -> dict[str, Float[Array, " kinds"]]:
    key_drawn, key = jax.random.split(key)
    drawn = drawing(key_drawn)
    found = estimates(estimators, key, drawn, numbers)
    return {name: jnp.mean(jnp.square(estimate - drawn.truth), axis=0) for name, estimate in found.items()}


def program_of(config: ConfigDict) -> tuple[Any, tuple[Any, ...]]:
    """The program of `config.data`'s shape, and the shapes of what it is called with."""
    program = _program(tuple(config.estimators), config.data.n, config.data.dimensions, config.queries)
    shapes = jax.eval_shape(
        lambda: (keys_of(config.seeds, config.draws), keys_of(config.seeds, config.choosing), jnp.float32(0))
    )
    return program, shapes


def identity(config: ConfigDict) -> dict[str, list[float]]:
    """The largest difference to kernel regression over all draws, at every width.

    Of attention with the Gaussian score, and of dot products at temperature width² with −‖k‖² / 2 width² added.
    """
    drawing = _drawing(config)

    @jax.jit
    def differences(keys, width):
        def of_draw(key):
            drawn = drawing(key)
            exact, *others = (
                answer(key, drawn.query, drawn.key, drawn.value, width)
                for answer in (nadaraya_watson, attention, dot_attention_with_norms)
            )
            return [jnp.max(jnp.abs(other - exact)) for other in others]

        return [jnp.max(found) for found in over_draws(of_draw, keys)]

    keys = keys_of(config.seeds, config.draws)
    found = [jax.device_get(differences(keys, jnp.float32(width))) for width in config.identity.widths]
    gaussian, dot = zip(*found, strict=True)
    return {
        "width": [*config.identity.widths],
        "gaussian": [float(one) for one in gaussian],
        "dot": [float(one) for one in dot],
    }


def features(config: ConfigDict) -> list[dict[str, Any]]:
    """How far linear attention with random features is from the softmax that it estimates, by their count and width.

    The root of the mean squared difference over draws, with its interval; and the exponent p of error = c count^p, the
    mean over groups of draws, each with features of its own.
    """
    counts = sorted(set(config.features.counts))
    keys = keys_of(config.seeds, config.draws)
    programs = [_apart(config, count) for count in counts]
    found = []
    for width in config.features.widths:
        squared = np.array([jax.device_get(program(keys, width)) for program in programs], np.float64)
        mean, low, high = np.sqrt([metric_interval("mse_mean", of_count) for of_count in squared]).T.tolist()
        of_width = {"mean": mean, "low": low, "high": high, "exponent": exponent(counts, squared)}
        found.append({"width": width, "count": counts, **of_width})
    return found


def exponent(counts: Sequence[int], squared: Float[np.ndarray, "counts draws"]) -> dict[str, float]:
    """The exponent by which the root of the mean of squares falls with the count, with its interval over groups."""
    groups = np.array_split(squared, min(GROUPS, squared.shape[1]), axis=1)
    powers = [fitted_powers({"count": counts}, np.sqrt(group.mean(axis=1)).tolist())["count"][0] for group in groups]
    return dict(zip(("mean", "low", "high"), mean_interval(powers), strict=True))


def _apart(config: ConfigDict, count: int) -> Any:
    """(keys of draws, width) → the mean squared difference between both attentions of each draw."""
    drawing = _drawing(config)

    def of_draw(width, key):
        key_drawn, key = jax.random.split(key)
        drawn = drawing(key_drawn)
        asked = key, drawn.query, drawn.key, drawn.value, width
        return jnp.mean(jnp.square(random_features(*asked, count=count) - attention(*asked)))

    return jax.jit(lambda keys, width: over_draws(functools.partial(of_draw, width), keys))


def _drawing(config: ConfigDict) -> Callable[[Key[Array, ""]], Draw]:
    """Draws at `config.data`."""
    return functools.partial(draw, queries=config.queries, **config.data.to_dict())


def keys_of(seeds: Sequence[int], count: int, stream: int = 0) -> Key[Array, " draws"]:
    """A key for each of `count` draws of every seed, along the first axis; another stream has other draws."""
    return jnp.concatenate(
        [jax.random.split(jax.random.fold_in(jax.random.key(seed), stream), count) for seed in seeds]
    )


def summary(values: Float[np.ndarray, " draws"]) -> dict[str, Any]:
    """The mean over draws and its 95% interval."""
    mean, low, high = metric_interval("mse_mean", values)
    return {"mse_mean": mean, "mse_ci95": [low, high]}
