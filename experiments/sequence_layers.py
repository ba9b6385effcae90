"""What a layer costs that lets n tokens of d features see one another, measured beside the formulas.

Vaswani et al. 2017, table 1: compute, sequential operations, and the longest path between two tokens.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.evaluation.statistics import fitted_powers
from attention_jax.ops.mixing import convolution, windowed_attention
from attention_jax.ops.pooling import attend
from attention_jax.ops.recurrent import CELLS, CellWeights, recurrent
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table
from attention_jax.reports.sequence_layers import cost_curves, reach_curves
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.training.cost import cost, depth
from attention_jax.training.description import Description


class Sizes(NamedTuple):
    """A sequence's length and features, the kernel's size, and how far a window reaches."""

    n: int
    d: int
    kernel: int
    reach: int


class SequenceLayer(NamedTuple):
    """A layer without projections: what it mixes with, and what is known of it.

    `apply(params, x, sizes, dilation)` is one layer of a stack. `spread` is what its longest path is counted in, where
    that is not layers: one step of a recurrence, at all tokens at once.
    """

    init: Callable[[Key[Array, ""], Sizes], Any]
    apply: Callable[[Any, Float[Array, "n d"], Sizes, int], Float[Array, "n d"]]
    compute: str
    flops: Callable[[Sizes], float]  # of the formula, multiply and add counted apart
    sequential: str
    path: str
    longest: Callable[[Sizes], float]  # path of the formula
    spread: Callable[[Any, Array, Array, Sizes], Array] | None = None
    dilations: Callable[[Sizes], tuple[int, ...]] = lambda sizes: (1,)  # of a stack's layers, over and over


def _gru_weights(key: Array, sizes: Sizes) -> CellWeights:
    first, second = jax.random.split(key)
    shape, scale = (sizes.d, 3 * sizes.d), sizes.d**-0.5
    w_i, w_h = (scale * jax.random.normal(one, shape) for one in (first, second))
    return CellWeights(w_i, w_h, jnp.zeros(3 * sizes.d), jnp.zeros(sizes.d))


def _gru_step(weights: CellWeights, x: Array, states: Array, sizes: Sizes) -> Array:
    """Every token's state from the one before it: n such steps give the recurrence."""
    del sizes
    before = jnp.pad(states, ((1, 0), (0, 0)))[:-1]
    return CELLS["gru"].step((before,), weights.project(x), weights)[0]


def _kernel(key: Array, sizes: Sizes) -> Array:
    return jax.random.normal(key, (sizes.kernel, sizes.d, sizes.d)) / math.sqrt(sizes.kernel * sizes.d)


def _dilated_layers(sizes: Sizes) -> int:
    """⌈log_k n⌉ layers of dilations 1, k, k², … see k^layers tokens, each back to n − 1 before it."""
    layers = 1
    while sizes.kernel**layers < sizes.n:
        layers += 1
    return layers


LAYERS = {
    "self_attention": SequenceLayer(
        init=lambda key, sizes: (),
        apply=lambda params, x, sizes, dilation: attend(x, x, x),
        compute="n² d",
        flops=lambda sizes: 4 * sizes.n**2 * sizes.d,
        sequential="1",
        path="1",
        longest=lambda sizes: 1,
    ),
    "window": SequenceLayer(
        init=lambda key, sizes: (),
        apply=lambda params, x, sizes, dilation: windowed_attention(x, x, x, sizes.reach),
        compute="r n d",
        flops=lambda sizes: 4 * (2 * sizes.reach + 1) * sizes.n * sizes.d,
        sequential="1",
        path="n / r",
        longest=lambda sizes: math.ceil((sizes.n - 1) / sizes.reach),
    ),
    "gru": SequenceLayer(
        init=_gru_weights,
        apply=lambda weights, x, sizes, dilation: recurrent("gru", x, jnp.ones(x.shape[:-1], bool), weights)[0],
        compute="n d²",
        flops=lambda sizes: 12 * sizes.n * sizes.d**2,
        sequential="n",
        path="n",
        longest=lambda sizes: sizes.n,
        spread=_gru_step,
    ),
    "cnn": SequenceLayer(
        init=_kernel,
        apply=lambda kernel, x, sizes, dilation: convolution(x, kernel),
        compute="k n d²",
        flops=lambda sizes: 2 * sizes.kernel * sizes.n * sizes.d**2,
        sequential="1",
        path="n / k",
        longest=lambda sizes: math.ceil((sizes.n - 1) / (sizes.kernel // 2)),
    ),
    "cnn_dilated": SequenceLayer(
        init=_kernel,
        apply=lambda kernel, x, sizes, dilation: convolution(x, kernel, dilation=dilation, is_causal=True),
        compute="k n d²",
        flops=lambda sizes: 2 * sizes.kernel * sizes.n * sizes.d**2,
        sequential="1",
        path="log_k n",
        longest=_dilated_layers,
        dilations=lambda sizes: tuple(sizes.kernel**level for level in range(_dilated_layers(sizes))),
    ),
}


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


def measure(config: ConfigDict) -> dict:
    """Of every layer: costs at every n and d, exponents fitted to them, and paths."""
    sizes = [Sizes(n, d, config.kernel, config.reach) for n in config.lengths for d in config.widths]
    found = {name: [_costs(LAYERS[name], one, config) for one in sizes] for name in config.layers}
    thin = [Sizes(n, 4, config.kernel, config.reach) for n in config.lengths]  # where dependence is traced
    reach = {name: [_reach(LAYERS[name], one) for one in thin] for name in config.layers}
    return {
        "costs": {name: _rows(sizes, rows) for name, rows in found.items()},
        "exponents": {name: {what: _powers(sizes, rows, what) for what in MEASURED} for name, rows in found.items()},
        "paths": {
            name: _rows(
                thin,
                [{"layers": len(r), "formula": LAYERS[name].longest(one)} for one, r in zip(thin, rs, strict=True)],
            )
            for name, rs in reach.items()
        },
        "reach": {name: rows[-1] for name, rows in reach.items()},
    }


def _rows(sizes: Sequence[Sizes], found: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    return [{**one._asdict(), **row} for one, row in zip(sizes, found, strict=True)]


DRAWN = ("flops", "depth", "seconds", "bytes")
MEASURED = (*DRAWN, "compiled_flops")


def _costs(layer: SequenceLayer, sizes: Sizes, config: ConfigDict) -> dict[str, float]:
    params = layer.init(jax.random.key(0), sizes)
    x = jax.random.normal(jax.random.key(1), (sizes.n, sizes.d))
    program = functools.partial(_applied, layer, sizes)
    spent, run = cost(program, params, x), jax.jit(program)
    return {
        "flops": spent.flops,
        "compiled_flops": spent.compiled_flops,
        "formula": layer.flops(sizes),
        "depth": depth(program, params, x),
        "seconds": _least_seconds(run, (params, x), config.repeats),
        "bytes": spent.bytes,
    }


def _applied(layer: SequenceLayer, sizes: Sizes, params: Any, x: Array) -> Array:
    return layer.apply(params, x, sizes, layer.dilations(sizes)[-1])


def _least_seconds(run: Callable, arguments: tuple, repeats: int) -> float:
    """The least of some timings: what is above it is other work on the machine."""
    jax.block_until_ready(run(*arguments))
    timings = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(run(*arguments))
        timings.append(time.perf_counter() - started)
    return min(timings)


def _powers(sizes: Sequence[Sizes], rows: Sequence[Mapping[str, float]], what: str) -> dict[str, Any]:
    """Exponents of n and d in `what`, with their 95% intervals."""
    return fitted_powers({"n": [s.n for s in sizes], "d": [s.d for s in sizes]}, [row[what] for row in rows])


def _reach(layer: SequenceLayer, sizes: Sizes) -> list[int]:
    """How many inputs the last output depends on after each layer, or step of a recurrence, until it is all of them."""
    links = [_links(layer, sizes, dilation) for dilation in layer.dilations(sizes)]
    is_stack = layer.spread is None  # whose first layer reads the inputs; a recurrence's first states have seen nothing
    seen = np.eye(sizes.n, dtype=bool) if is_stack else np.zeros((sizes.n, sizes.n), bool)
    counts: list[int] = []
    while not counts or (counts[-1] < sizes.n and len(counts) <= sizes.n):
        of_input, of_last = links[len(counts) % len(links)]
        seen = of_input | (of_last @ seen)
        counts.append(int(seen[-1].sum()))
    return counts


def _links(layer: SequenceLayer, sizes: Sizes, dilation: int) -> tuple[np.ndarray, np.ndarray]:
    """Which inputs, and which tokens of the layer or step before, each token depends on: where Jacobians are not 0."""
    x, last = (jax.random.normal(jax.random.key(seed), (sizes.n, sizes.d)) for seed in (1, 2))
    params = layer.init(jax.random.key(0), sizes)

    def once(x, last):
        if layer.spread is not None:
            return layer.spread(params, x, last, sizes).sum(-1)
        return layer.apply(params, last, sizes, dilation).sum(-1)

    both = jax.jit(jax.jacobian(once, argnums=(0, 1)))(x, last)
    of_input, of_last = (np.any(np.asarray(jacobian) != 0, axis=-1) for jacobian in both)
    return of_input, of_last


def evaluate(session: ConfigDict, config: ConfigDict, run: Run) -> dict:
    """Measure again."""
    del session, run
    return measure(config)


def describe(config: ConfigDict) -> Description:
    """The layer of the config's first name, at its largest sizes."""
    layer, sizes = LAYERS[config.layers[0]], Sizes(config.lengths[-1], config.widths[-1], config.kernel, config.reach)
    params = jax.eval_shape(lambda: layer.init(jax.random.key(0), sizes))
    x = jax.ShapeDtypeStruct((sizes.n, sizes.d), jnp.float32)
    return Description(params, functools.partial(_applied, layer, sizes), (params, x))


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
    metric=lambda config: f"exponents.{config.layers[0]}.flops",
)
