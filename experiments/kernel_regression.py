"""Kernel regression: every estimator on thousands of independent draws of the data, in one program."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Estimate, Table
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.runs.machine import Profiler
from attention_jax.tasks.kernel_regression.drawing import draw
from attention_jax.tasks.kernel_regression.estimates import (
    arguments_of,
    estimators_of,
    problem_of,
    squared_errors,
    summary,
)
from attention_jax.training.description import Description

Program = Callable[..., dict[str, Array]]  # many configs' `arguments_of`, stacked → `squared_errors` of each


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    problem_of(config)
    estimators_of(config)


def open_program(config: ConfigDict, folder: Path) -> Program:
    """What configs share: one program that draws their data and measures every estimator on it, all at once."""
    del folder
    return jax.jit(jax.vmap(functools.partial(squared_errors, config)))


def together(program: Program, how: str) -> Together:
    """Nothing is trained step by step: a run is its measurements."""
    del how
    return Together(functools.partial(finish, program))


def finish(program: Program, configs: Sequence[ConfigDict], runs: Sequence[Run]) -> list[dict]:
    """Mean, standard deviation and 95% interval of each estimator's error, of every run."""
    profiler = Profiler(runs[0].profile)
    profiler.tick()
    arguments = [arguments_of(config) for config in configs]
    found = jax.device_get(program(*(jnp.stack(column) for column in zip(*arguments, strict=True))))
    profiler.stop()
    return [
        result_of(config, {name: errors[index] for name, errors in found.items()})
        for index, config in enumerate(configs)
    ]


def result_of(config: ConfigDict, errors: Mapping[str, Float[np.ndarray, " draws"]]) -> dict[str, Any]:
    """Each estimator's error over the draws of all seeds; where there are several, of each seed too, as `members`."""
    result: dict[str, Any] = {"estimators": {name: summary(of_draws) for name, of_draws in errors.items()}}
    if len(config.seeds) > 1:
        by_seed = {name: of_draws.reshape(len(config.seeds), -1) for name, of_draws in errors.items()}
        members = range(len(config.seeds))
        result["members"] = [{"estimators": {name: summary(of[i]) for name, of in by_seed.items()}} for i in members]
    return result


def evaluate(program: Program, config: ConfigDict, run: Run) -> dict:
    """Measure again."""
    return finish(program, [config], [run])[0]


def describe(config: ConfigDict) -> Description:
    """The learned widths are the only parameters."""
    dimensions = problem_of(config).queries.shape[-1]
    learned = {
        name: jax.ShapeDtypeStruct((dimensions,), jnp.float32) for name in config.estimators if "learned" in name
    }
    shapes = jax.eval_shape(lambda: arguments_of(config))
    return Description({"log_width": learned}, functools.partial(squared_errors, config), shapes)


def figures(program: Program, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """Fits, weights, kernel shapes, and the learned width on its loss, all of the first draw."""
    del program, result
    return draw(config, run.subfolder("figures"))


def tables(program: Program, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """Errors by estimator, best first."""
    del program, config, run
    rows = sorted(result["estimators"].items(), key=lambda item: item[1]["mse_mean"])
    return [
        Table(
            "Mean squared error against the noiseless truth",
            ("estimator", "mean, with its 95% interval", "standard deviation"),
            [(name, Estimate(row["mse_mean"], *row["mse_ci95"]), row["mse_std"]) for name, row in rows],
        )
    ]


EXPERIMENT = Experiment(
    open=open_program,
    together=together,
    evaluate=evaluate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    dynamic=("data.noise", "kernel.width"),
    steps=lambda config: 1,
    on_cpu="vmap",
    metric=lambda config: "estimators.kernel.mse_mean",
)
