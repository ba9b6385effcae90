"""What a layer costs that lets n tokens of d features see one another, measured beside the formulas.

Vaswani et al. 2017, table 1: compute, sequential operations, and the longest path between two tokens.
"""

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table
from attention_jax.reports.sequence_layers import cost_curves, reach_curves
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.tasks.sequence_layers.layers import LAYERS, Sizes, applied
from attention_jax.tasks.sequence_layers.measuring import DRAWN, measure
from attention_jax.training.description import Description


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    if not config.layers:
        raise UserError(f"config.layers=(): choose of {', '.join(LAYERS)}.")
    for name in config.layers:
        if name not in LAYERS:
            raise UserError(f"config.layers: no layer {name!r}: choose of {', '.join(LAYERS)}.")
    if config.kernel < 3 or config.kernel % 2 == 0:
        raise UserError(f"config.kernel={config.kernel}: needs an odd number, 3 or more.")
    for name in ("reach", "repeats"):
        if config[name] < 1:
            raise UserError(f"config.{name}={config[name]}: needs 1 or more.")
    for name in ("lengths", "widths"):
        if len(set(config[name])) < 3 or min(config[name]) < 2:
            raise UserError(
                f"config.{name}={config[name]}: needs three or more different ones, each 2 or more, to fit exponents."
            )


def together(config: ConfigDict, how: str) -> Together:
    """Nothing is trained: a run is its measurements."""
    del how
    check(config)
    return Together(lambda configs, runs: [measure(one) for one in configs])


def evaluate(session: ConfigDict, config: ConfigDict, run: Run) -> dict:
    """Measure again."""
    del session, run
    return measure(config)


def describe(config: ConfigDict) -> Description:
    """The layer of the config's first name, at its largest sizes."""
    layer, sizes = LAYERS[config.layers[0]], Sizes(config.lengths[-1], config.widths[-1], config.kernel, config.reach)
    params = jax.eval_shape(lambda: layer.init(jax.random.key(0), sizes))
    x = jax.ShapeDtypeStruct((sizes.n, sizes.d), jnp.float32)
    return Description(params, functools.partial(applied, layer, sizes), (params, x))


def figures(session: ConfigDict, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """Costs against n at the largest d and against d at the largest n, and how dependence spreads."""
    del session
    folder = run.subfolder("figures")
    series = {
        name: {what: np.array([row[what] for row in rows]) for what in ("n", "d", *DRAWN)}
        for name, rows in result["costs"].items()
    }
    fixed = {"n": config.lengths[-1], "d": config.widths[-1]}
    return [
        cost_curves(series, fixed, DRAWN, folder / "costs.png"),
        reach_curves(result["reach"], config.lengths[-1], folder / "reach.png"),
    ]


def tables(session: ConfigDict, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """The formulas, and beside each what was measured."""
    del session, run
    rows = []
    for name in config.layers:
        layer, powers = LAYERS[name], result["exponents"][name]
        longest = result["paths"][name][-1]
        rows.append(
            (
                name,
                layer.compute,
                _shown(powers["flops"]),
                _shown(powers["compiled_flops"]),
                _shown(powers["seconds"]),
                _shown(powers["bytes"]),
                layer.sequential,
                _shown(powers["depth"], ("n",)),
                layer.path,
                f"{longest['layers']} (formula {longest['formula']})",
            )
        )
    columns = (
        "layer",
        "compute",
        "FLOPs",
        "compiler's count",
        "seconds",
        "bytes",
        "sequential",
        "depth",
        "path",
        f"at n = {config.lengths[-1]}",
    )
    note = (
        "Powers of n and d fitted to all lengths and widths, with 95% intervals. FLOPs are of matrix products, a "
        "loop's body as often as it runs; the compiler's count has elementwise work too, and a loop's body once. "
        "Paths are counted from Jacobians."
    )
    return [Table("What each layer costs, measured beside the formulas", columns, rows, note)]


def _shown(powers: Mapping[str, Sequence[float]], names: Sequence[str] = ("n", "d")) -> str:
    rounded = {name: [round(end, 2) + 0.0 for end in powers[name]] for name in names}  # never −0
    return "\n".join(
        f"{n}^{mean:.2f}\N{NO-BREAK SPACE}[{low:.2f},\N{NO-BREAK SPACE}{high:.2f}]"
        for n, (mean, low, high) in rounded.items()
    )


EXPERIMENT = Experiment(
    together=together,
    evaluate=evaluate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    steps=lambda config: 1,
    metric=lambda config: f"exponents.{config.layers[0]}.flops",
)
