"""Kernel regression of many points: seconds and memory beside NumPy, a block of queries at a time."""

import functools
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from attention_jax.ops.pooling import kernel_regression
from attention_jax.tasks.benchmark.memory import alone, peak_megabytes
from attention_jax.tasks.benchmark.rounds import Row, in_turn
from attention_jax.tasks.benchmark.tools import Tools
from attention_jax.tasks.timing import least_seconds, seconds_of

Points = Float[np.ndarray, "n 1"]
KERNELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # of the distances of a block, in units of the width
    "gaussian": lambda u: np.exp(-0.5 * u * u),
    "boxcar": lambda u: (np.abs(u) < 1).astype(u.dtype),
    "triangular": lambda u: np.maximum(1 - np.abs(u), 0),
    "epanechnikov": lambda u: np.maximum(1 - u * u, 0),
}


def measure(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Seconds of every kernel at `config.kernel_regression.points` queries and as many keys, and the memory of it."""
    del tools
    asked = config.kernel_regression
    x, y = points(asked.points)
    size = f"{asked.points:,} × {asked.points:,}"
    for kernel in asked.kernels:
        block = best_block(kernel, config)
        numpy = functools.partial(by_numpy, kernel=kernel, width=asked.width, block=block)
        ours, theirs = (functools.partial(answer, each, x, x, y) for each in (program_of(kernel, asked.width), numpy))
        few = slice(None, None, max(asked.points // 100, 1))
        apart = np.max(np.abs(ours()[few] - numpy(x[few], x, y)))
        note = f"differs by {apart:.0e} at most; NumPy: queries at a time {block}"
        measures = functools.partial(seconds_of, ours), {"NumPy": functools.partial(seconds_of, theirs)}
        yield Row("kernel_regression", f"{kernel}, {size}", "s", *in_turn(asked.rounds, *measures), note)
        memory = alone(memory_of, kernel, asked.width, asked.points)
        yield Row("kernel_regression", f"{kernel}, {size}: memory above that of a start", "MB", [memory])


def best_block(kernel: str, config: ConfigDict) -> int:
    """Of `config.kernel_regression.blocks` that with which NumPy answers some queries soonest."""
    asked = config.kernel_regression
    x, y = points(asked.points)
    few = x[: 4 * max(asked.blocks)]

    def seconds(block: int) -> float:
        return least_seconds(functools.partial(by_numpy, few, x, y, kernel, asked.width, block), repeats=2)

    return min(asked.blocks, key=seconds)


def points(count: int) -> tuple[Points, Points]:
    """Queries, which are the keys too, and values."""
    x = np.sort(np.random.default_rng(0).random((count, 1), np.float32), axis=0)
    return x, np.sin(9 * x).astype(np.float32)


def program_of(kernel: str, width: float) -> Callable:
    """The regression, compiled at its first call."""
    return jax.jit(functools.partial(kernel_regression, kernel=kernel, width=width))


def memory_of(kernel: str, width: float, count: int) -> float:
    """MB that a process takes to answer, above what it held after answering for eight points."""
    program = program_of(kernel, width)
    x, y = points(8)
    answer(program, x, x, y)
    x, y = points(count)
    return peak_megabytes(functools.partial(answer, program, x, x, y))[1]


def answer(estimate: Callable, *points: Points) -> Points:
    """The estimate, as an array of the host."""
    return np.asarray(estimate(*points))


def by_numpy(query: Points, key: Points, value: Points, kernel: str, width: float, block: int) -> Points:
    """Σ_i v_i K(u_i) / Σ_j K(u_j), u_i = (q − k_i) / width, of so many queries at a time."""
    found = []
    for first in range(0, len(query), block):
        weights = KERNELS[kernel]((query[first : first + block] - key.T) * np.float32(1 / width))
        found.append((weights @ value) / weights.sum(-1, keepdims=True))
    return np.concatenate(found)
