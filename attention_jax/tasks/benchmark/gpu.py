"""On a GPU: training as a share of the rate of its products, attention beside cuDNN's, and populations."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.tasks.benchmark.attention import with_gradient
from attention_jax.tasks.benchmark.cases import changed
from attention_jax.tasks.benchmark.pairs import write_pairs
from attention_jax.tasks.benchmark.rounds import Row, in_turn
from attention_jax.tasks.benchmark.tools import Tools
from attention_jax.tasks.benchmark.training import WAYS, Rounds, peers_of, prepare, rate_of
from attention_jax.tasks.needs import unseen_flops
from attention_jax.tasks.timing import median_rate
from attention_jax.training.compiling import Rehearsals
from attention_jax.training.cost import flops
from attention_jax.training.progress import tell

PRODUCT = "one product"
REPEATS = 10  # calls that are sent before the first is waited for


def measure(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Every row of `config.gpu.parts`, where a GPU computes."""
    if jax.default_backend() != "gpu":
        tell(f"gpu  left out: JAX computes on a {jax.default_backend()} here")
        return
    for name in config.gpu.parts:
        yield from PARTS[name](config, tools)


def of_training(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Target tokens a second beside PyTorch's, and the FLOPs of their batches beside those of one large product."""
    asked = config.gpu
    size = jax.random.normal(jax.random.key(0), (asked.product, asked.product), asked.dtype)
    product = functools.partial(_seconds, jax.jit(jnp.matmul), size, size)
    for name, case in asked.cases.items():
        training = prepare(case, config.optimizer)
        of_word = model_flops(case, config.optimizer) / words_of_step(case, training.learner.table["target"])
        rates = functools.partial(median_rate, Rounds(training, case).advance, config.seconds)
        path = write_pairs(tools.folder / f"{name}.npz", training.learner.table, case.vocabulary)
        ways = {name: {**way, **_on_gpu(case)} for name, way in WAYS.items() if "thread" not in name}
        with tools.peers.running(peers_of(config, case, path, ways)) as running:
            versions = {peer.ask()["version"] for peer in running.values()}  # what is compiled is compiled now
            others = {name: functools.partial(rate_of, peer) for name, peer in running.items()}
            rates()
            ours, theirs = in_turn(config.rounds, rates, {PRODUCT: lambda: 2 * asked.product**3 / product(), **others})
        ceiling = {PRODUCT: theirs.pop(PRODUCT)}
        yield Row("gpu", f"{name}: training", "FLOP/s", [rate * of_word for rate in ours], ceiling)
        yield Row("gpu", f"{name}: training", "target tokens/s", ours, theirs, ", ".join(versions))


def _on_gpu(case: ConfigDict) -> dict[str, object]:
    """The flags of a peer that computes as the case does."""
    return {"device": "cuda", "dtype": case.dtype, "steps": case.steps_per_call}


def model_flops(case: ConfigDict, optimizer: ConfigDict) -> float:
    """The FLOPs that a step needs of a batch, padding too, however they are computed."""
    plain = changed(case, {"model.kwargs.backend": "reference"})
    training = prepare(plain, optimizer)
    unseen = unseen_flops(training.learner.model, case.batch, case.length)
    return flops(training.step, *training.shapes(case.batch)) - unseen


def words_of_step(case: ConfigDict, target: np.ndarray) -> float:
    """Words of a batch that are no padding, in the mean."""
    return case.batch * np.count_nonzero(target) / len(target)


def of_attention(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Seconds of attention with gradients: each backend beside others at every length and size of heads."""
    del tools
    asked = config.gpu
    every = list(itertools.product(asked.attention.items(), asked.lengths, asked.sizes))
    pairs, ahead = [_pair(asked, compared, *sizes) for (_, compared), *sizes in every], Rehearsals()
    for program, arrays in itertools.chain(*pairs):
        ahead.add(program, *arrays)
    ahead.wait()
    for ((name, compared), length, size), pair in zip(every, pairs, strict=True):
        ours, other = (functools.partial(_seconds, program, *_drawn(arrays)) for program, arrays in pair)
        others = {compared.beside: other} if _has_room(other) else {}
        what = f"{name}, causal, forward and gradient, {length:,} tokens, heads of {size}"
        note = "" if others else f"{compared.beside} has no room"
        yield Row("gpu", what, "s", *in_turn(config.rounds, ours, others), note)


def _pair(asked: ConfigDict, compared: ConfigDict, length: int, size: int) -> list[tuple[Any, tuple]]:
    """The two programs that are compared, and the shapes of their arrays."""
    shape = jax.ShapeDtypeStruct((asked.tokens // length, asked.heads, length, size), jnp.dtype(asked.dtype))
    return [
        (jax.jit(with_gradient(backend, True, compared.encoding)), (shape,) * 3)
        for backend in (compared.backend, compared.beside)
    ]


def _drawn(shapes: tuple) -> list[jax.Array]:
    return [jax.random.normal(jax.random.key(n), shape.shape, shape.dtype) for n, shape in enumerate(shapes)]


def _has_room(measure: Callable[[], float]) -> bool:
    try:
        measure()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return False
    return True


def of_members(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Words a second of many members side by side, beside one alone."""
    del tools
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


PARTS: dict[str, Callable[[ConfigDict, Tools], Iterator[Row]]] = {
    "attention": of_attention,
    "training": of_training,
    "members": of_members,
}
