"""The figures of kernel regression, all of the config's first draw."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.regression import Problem, Sample
from attention_jax.models.kernel_regression import estimator, learned_width, width_loss
from attention_jax.ops.kernels import KERNELS
from attention_jax.reports.figures import Figure, colours, curves
from attention_jax.reports.maps import heatmaps
from attention_jax.reports.regression import fits, kernel_shapes
from attention_jax.tasks.kernel_regression.estimates import keys_of, problem_of

WIDTHS = (0.1, 0.2, 0.5, 1.0)
LEARNED = {"own pair left out": True, "own pair kept (leaks)": False}


def draw(config: ConfigDict, folder: Path) -> list[Figure]:
    """Figures of the fits, the weights, the kernels, and the learned width on the curve of its loss."""
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


def _panels(problem: Problem, sample: Sample) -> tuple[np.ndarray, np.ndarray, list[list[str]]]:
    names = [[f"{kernel}_{width:g}" for width in WIDTHS] for kernel in KERNELS]
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
    palette: dict[str, str] = {}
    for (name, leave_one_out), colour in zip(LEARNED.items(), colours(LEARNED).values(), strict=True):
        keep = ~jnp.eye(len(sample.x), dtype=bool) if leave_one_out else None
        loss = jax.vmap(lambda w, keep=keep: width_loss(jnp.full(sample.x.shape[-1], jnp.log(w)), *sample, keep))
        learned, _ = learned_width(*sample, leave_one_out, **config.learned)
        series[name] = (np.asarray(widths), np.asarray(loss(widths)))
        width = jnp.exp(jnp.mean(jnp.log(learned)))  # in the plane, of both coordinates
        palette |= {name: colour, f"learned, {name}": colour}
        marks[f"learned, {name}"] = (float(width), float(width_loss(jnp.log(learned), *sample, keep)))
    return curves(
        series,
        path,
        "Training loss against the width, and the widths that gradient descent found from width 1.",
        xlabel="width",
        ylabel="mean squared error",
        log_x=True,
        marks=marks,
        palette=palette,
    )
