"""Kernel regression: every estimator on thousands of independent draws of the data, in one program."""

import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from ml_collections import ConfigDict

from attention_jax.data.regression import PROBLEMS, Problem, Sample
from attention_jax.errors import UserError
from attention_jax.evaluation.statistics import mean_interval
from attention_jax.models.kernel_regression import Estimator, estimator, learned_width, width_loss
from attention_jax.ops.kernels import KERNELS
from attention_jax.reports.figures import Figure, curves, heatmaps
from attention_jax.reports.page import Table
from attention_jax.reports.regression import fits, kernel_shapes
from attention_jax.runs.experiment import Description, Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.runs.machine import Profiler

FIGURE_WIDTHS = (0.1, 0.2, 0.5, 1.0)


def problem_of(config: ConfigDict, noise: Array | float | None = None) -> Problem:
    """The data set that `config.data` names, with another noise where it is given."""
    kwargs = config.data.to_dict()
    name = kwargs.pop("name")
    if name not in PROBLEMS:
        raise UserError(f"config.data.name={name!r}: choose one of {', '.join(PROBLEMS)}.")
    for key, value, least in (("data.n", config.data.n, 2), ("data.noise", config.data.noise, 0)):
        if value < least:
            raise UserError(f"config.{key}={value}: needs {least} or more.")
    return PROBLEMS[name](**kwargs if noise is None else kwargs | {"noise": noise})


def estimators_of(config: ConfigDict, width: Array | float | None = None) -> dict[str, Estimator]:
    """The estimators that `config.estimators` names; "kernel" is `config.kernel`, of another width where given."""
    for key, value, least in (("draws", config.draws, 1), ("learned.steps", config.learned.steps, 1)):
        if value < least:
            raise UserError(f"config.{key}={value}: needs {least} or more.")
    if not config.estimators:
        raise UserError("config.estimators is empty: name at least one.")
    if config.kernel.width <= 0:
        raise UserError(f"config.kernel.width={config.kernel.width}: needs more than 0.")
    kernel = (config.kernel.name, config.kernel.width if width is None else width)
    try:
        return {name: estimator(name, kernel=kernel, **config.learned) for name in config.estimators}
    except ValueError as error:
        raise UserError(f"config.estimators: {error}") from None


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    problem_of(config)
    estimators_of(config)


def keys_of(config: ConfigDict) -> Key[Array, " draws"]:
    """A key for each draw of every seed, along the first axis."""
    return jnp.concatenate([jax.random.split(jax.random.key(seed), config.draws) for seed in config.seeds])


def together(config: ConfigDict, folder: Path, how: str) -> Together:
    """One program that draws the data of configs and measures every estimator on it, all at once."""
    del folder, how
    program = jax.jit(jax.vmap(functools.partial(squared_errors, config)))

    def finish(configs, runs):
        profiler = Profiler(runs[0].profile)
        profiler.tick()
        arguments = [arguments_of(config) for config in configs]
        found = jax.device_get(program(*(jnp.stack(column) for column in zip(*arguments, strict=True))))
        profiler.stop()
        return [
            {"estimators": {name: _summary(errors[place]) for name, errors in found.items()}}
            for place in range(len(configs))
        ]

    return Together(finish)


def evaluate(config: ConfigDict, run: Run) -> dict:
    """Mean, standard deviation and 95% interval of each estimator's error."""
    return together(config, run.path, "loop").finish([config], [run])[0]


def describe(config: ConfigDict) -> Description:
    """The learned widths are the only parameters."""
    dimensions = problem_of(config).queries.shape[-1]
    learned = {
        name: jax.ShapeDtypeStruct((dimensions,), jnp.float32) for name in config.estimators if "learned" in name
    }
    shapes = jax.eval_shape(lambda: arguments_of(config))
    return Description({"log_width": learned}, functools.partial(squared_errors, config), shapes)


def figures(config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """Fits, weights, kernel shapes, and the learned width on its loss, all of the first draw."""
    del result
    folder = run.subfolder("figures")
    problem = problem_of(config)
    sample = jax.jit(problem.draw)(keys_of(config)[0])
    estimates, weights, titles = _panels(problem, sample)
    return [
        fits(
            estimates,
            titles,
            np.asarray(sample.x),
            np.asarray(sample.y),
            np.asarray(problem.queries),
            np.asarray(problem.truth),
            folder / "fits.png",
        ),
        heatmaps(
            weights,
            folder / "weights.png",
            "Weights of each query on the sample, by kernel (rows) and width (columns).",
            titles=titles,
            xlabel="sample",
        ),
        kernel_shapes({name: kernel.apply for name, kernel in KERNELS.items()}, folder / "kernels.png"),
        _learned_figure(config, sample, folder / "learned_width.png"),
    ]


def tables(config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """Errors by estimator, best first."""
    del config, run
    rows = sorted(result["estimators"].items(), key=lambda item: item[1]["mse_mean"])
    return [
        Table(
            "Mean squared error against the noiseless truth",
            ("estimator", "mean", "standard deviation", "95% from", "to"),
            [(name, row["mse_mean"], row["mse_std"], *row["mse_ci95"]) for name, row in rows],
        )
    ]


def arguments_of(config: ConfigDict) -> tuple[Array, Array, Array]:
    """A config's dynamic values."""
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


def _summary(errors: np.ndarray) -> dict:
    mean, low, high = mean_interval(errors)
    spread = float(np.std(errors, ddof=1, dtype=np.float64)) if len(errors) > 1 else math.nan
    return {"mse_mean": mean, "mse_std": spread, "mse_ci95": [low, high]}


def _panels(problem: Problem, sample: Sample) -> tuple[np.ndarray, np.ndarray, list[list[str]]]:
    names = [[f"{kernel}_{width:g}" for width in FIGURE_WIDTHS] for kernel in KERNELS]
    grid = [[estimator(name, steps=0, learning_rate=0, kernel=("gaussian", 1.0)) for name in row] for row in names]

    @jax.jit
    def ask(sample: Sample) -> tuple[jax.Array, jax.Array]:
        answers = [[(e(*sample, problem.queries), e.weights(*sample, problem.queries)) for e in row] for row in grid]
        estimates, weights = ([[answer[part] for answer in row] for row in answers] for part in (0, 1))
        return jnp.array(estimates), jnp.array(weights)

    estimates, weights = jax.device_get(ask(sample))
    return estimates, weights, [[name.replace("_", ", width ") for name in row] for row in names]


def _learned_figure(config: ConfigDict, sample: Sample, path) -> Figure:
    widths = jnp.geomspace(0.003, 3, 120)
    series, marks = {}, {}
    for name, leave_one_out in (("own pair left out", True), ("own pair kept (leaks)", False)):
        keep = ~jnp.eye(len(sample.x), dtype=bool) if leave_one_out else None
        loss = jax.vmap(lambda w, keep=keep: width_loss(jnp.full(sample.x.shape[-1], jnp.log(w)), *sample, keep))
        learned, _ = learned_width(*sample, leave_one_out, **config.learned)
        series[name] = (np.asarray(widths), np.asarray(loss(widths)))
        width = jnp.exp(jnp.mean(jnp.log(learned)))  # in the plane, of both coordinates
        marks[f"learned, {name}"] = (float(width), float(width_loss(jnp.log(learned), *sample, keep)))
    return curves(
        series,
        path,
        "Training loss against the width, and the widths that gradient descent found from width 1.",
        xlabel="width",
        ylabel="mean squared error",
        log_x=True,
        marks=marks,
    )


EXPERIMENT = Experiment(
    together=together,
    evaluate=evaluate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    dynamic=("data.noise", "kernel.width"),
    on_cpu="vmap",
    metric=lambda config: "estimators.kernel.mse_mean",
)
