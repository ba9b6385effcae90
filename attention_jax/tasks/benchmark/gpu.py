"""On a GPU: training as a share of the rate of its products, attention beside cuDNN's, and populations."""

import functools
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.tasks.benchmark.attention import with_gradient
from attention_jax.tasks.benchmark.cases import changed
from attention_jax.tasks.benchmark.rounds import Row, in_turn
from attention_jax.tasks.benchmark.tools import Tools
from attention_jax.tasks.benchmark.training import Rounds, prepare
from attention_jax.tasks.needs import beyond_causality
from attention_jax.tasks.timing import median_rate
from attention_jax.training.cost import flops
from attention_jax.training.progress import tell

REPEATS = 10  # calls that are sent before the first is waited for


def measure(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Every row of `config.gpu`, where a GPU computes."""
    del tools
    if jax.default_backend() != "gpu":
        tell(f"gpu  left out: JAX computes on a {jax.default_backend()} here")
        return
    yield from of_training(config)
    yield from of_attention(config)
    yield from of_members(config)


def of_training(config: ConfigDict) -> Iterator[Row]:
    """The FLOPs that a model needs a second, beside those of one large product."""
    asked = config.gpu
    size = jnp.ones((asked.product, asked.product), asked.dtype)
    product = functools.partial(_seconds, jax.jit(jnp.matmul), size, size)
    others = {"one product": lambda: 2 * asked.product**3 / product()}
    for name, case in asked.cases.items():
        needed = functools.partial(_flops_a_second, *_started(case, config.optimizer), config.seconds)
        needed()
        yield Row("gpu", f"{name}: training", "FLOP/s", *in_turn(config.rounds, needed, others))


def _started(case: ConfigDict, optimizer: ConfigDict) -> tuple[Rounds, float]:
    """A case in training, and the FLOPs that a word of it needs."""
    training = prepare(case, optimizer)
    words = words_of_step(case, training.learner.table["target"])
    return Rounds(training, case), model_flops(case, optimizer) / words


def _flops_a_second(rounds: Rounds, of_word: float, seconds: float) -> float:
    return of_word * median_rate(rounds.advance, seconds)


def model_flops(case: ConfigDict, optimizer: ConfigDict) -> float:
    """The FLOPs that a step needs, however they are computed."""
    plain = changed(case, {"model.kwargs.backend": "reference"})
    training = prepare(plain, optimizer)
    beyond = beyond_causality(training.learner.model, case.batch, case.length)
    return flops(training.step, *training.shapes(case.batch)) - beyond


def words_of_step(case: ConfigDict, target: np.ndarray) -> float:
    """Words of a batch that are no padding, in the mean."""
    return case.batch * np.count_nonzero(target) / len(target)


def of_attention(config: ConfigDict) -> Iterator[Row]:
    """Seconds of attention with gradients: each backend beside others at every length and size of heads."""
    asked = config.gpu
    for name, compared in asked.attention.items():
        for length in asked.lengths:
            for size in asked.sizes:
                shape = (asked.tokens // length, asked.heads, length, size)
                arrays = [jax.random.normal(jax.random.key(n), shape, jnp.dtype(asked.dtype)) for n in range(3)]
                ours, other = (
                    functools.partial(_seconds, jax.jit(with_gradient(backend, True, compared.encoding)), *arrays)
                    for backend in (compared.backend, compared.beside)
                )
                what = f"{name}, causal, forward and gradient, {length:,} tokens, heads of {size}"
                yield Row("gpu", what, "s", *in_turn(config.rounds, ours, {compared.beside: other}))


def of_members(config: ConfigDict) -> Iterator[Row]:
    """Words a second of many members side by side, beside one alone."""
    case, members = config.train.cases.bahdanau, config.gpu.members
    many, one = (Rounds(prepare(case, config.optimizer, "vmap", count), case) for count in (members, 1))
    ours = lambda: members * median_rate(many.advance, config.seconds)  # noqa: E731
    alone = lambda: median_rate(one.advance, config.seconds)  # noqa: E731
    for compile_it in (ours, alone):
        compile_it()
    yield Row("gpu", f"{members} members: {case.what}", "words/s", *in_turn(config.rounds, ours, {"one": alone}))


def _seconds(program: Callable, *arguments: jax.Array) -> float:
    """Of one call, in the mean of several."""
    jax.block_until_ready(program(*arguments))
    started = time.perf_counter()
    jax.block_until_ready([program(*arguments) for _ in range(REPEATS)])
    return (time.perf_counter() - started) / REPEATS
