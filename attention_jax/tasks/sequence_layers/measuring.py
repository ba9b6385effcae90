"""The costs of sequence layers, counted and timed, and how many layers join the first token to the last."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from attention_jax.evaluation.statistics import fitted_powers
from attention_jax.tasks.sequence_layers.layers import LAYERS, SequenceLayer, Sizes, applied
from attention_jax.tasks.timing import least_seconds
from attention_jax.training.cost import cost, depth

DRAWN = ("flops", "depth", "seconds", "bytes")
FITTED = (*DRAWN, "compiled_flops")


def measure(config: ConfigDict) -> dict:
    """Every layer's costs at every n and d, the exponents fitted to them, and its longest paths."""
    sizes = [Sizes(n, d, config.kernel, config.reach) for n in config.lengths for d in config.widths]
    found = {name: [_costs(LAYERS[name], one, config) for one in sizes] for name in config.layers}
    thin = [Sizes(n, 4, config.kernel, config.reach) for n in config.lengths]  # where dependence is traced
    reach = {name: [_reach(LAYERS[name], one) for one in thin] for name in config.layers}
    return {
        "costs": {name: _rows(sizes, rows) for name, rows in found.items()},
        "exponents": {name: {what: _powers(sizes, rows, what) for what in FITTED} for name, rows in found.items()},
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


def _costs(layer: SequenceLayer, sizes: Sizes, config: ConfigDict) -> dict[str, float]:
    params = layer.init(jax.random.key(0), sizes)
    x = jax.random.normal(jax.random.key(1), (sizes.n, sizes.d))
    program = functools.partial(applied, layer, sizes)
    spent, run = cost(program, params, x), jax.jit(program)
    return {
        "flops": spent.flops,
        "compiled_flops": spent.compiled_flops,
        "formula": layer.flops(sizes),
        "depth": depth(program, params, x),
        "seconds": least_seconds(run, params, x, repeats=config.repeats),
        "bytes": spent.bytes,
    }


def _powers(sizes: Sequence[Sizes], rows: Sequence[Mapping[str, float]], what: str) -> dict[str, Any]:
    """The exponents of n and d in the column `what`, with their 95% intervals."""
    return fitted_powers({"n": [s.n for s in sizes], "d": [s.d for s in sizes]}, [row[what] for row in rows])


def _reach(layer: SequenceLayer, sizes: Sizes) -> list[int]:
    """How many inputs the last output depends on after each layer, or step of a recurrence, until it depends on all."""
    links = [_links(layer, sizes, dilation) for dilation in layer.dilations(sizes)]
    is_stack = layer.spread is None  # a stack's first layer reads the inputs; a recurrence's first states are empty
    seen = np.eye(sizes.n, dtype=bool) if is_stack else np.zeros((sizes.n, sizes.n), bool)
    counts: list[int] = []
    while not counts or (counts[-1] < sizes.n and len(counts) <= sizes.n):
        of_input, of_last = links[len(counts) % len(links)]
        seen = of_input | (of_last @ seen)
        counts.append(int(seen[-1].sum()))
    return counts


def _links(layer: SequenceLayer, sizes: Sizes, dilation: int) -> tuple[np.ndarray, np.ndarray]:
    """Which inputs, and which tokens of the layer or step before, each token depends on: their Jacobians are not 0."""
    x, last = (jax.random.normal(jax.random.key(seed), (sizes.n, sizes.d)) for seed in (1, 2))
    params = layer.init(jax.random.key(0), sizes)

    def once(x, last):
        if layer.spread is not None:
            return layer.spread(params, x, last, sizes).sum(-1)
        return layer.apply(params, last, sizes, dilation).sum(-1)

    both = jax.jit(jax.jacobian(once, argnums=(0, 1)))(x, last)
    of_input, of_last = (np.any(np.asarray(jacobian) != 0, axis=-1) for jacobian in both)
    return of_input, of_last
