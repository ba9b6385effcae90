"""Attention of long texts: blocks beside all weights at once."""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from attention_jax.backends import attend
from attention_jax.ops.attention import Relative
from attention_jax.ops.encoding import Spec
from attention_jax.ops.masking import causal_mask
from attention_jax.ops.positions import make_encoding
from attention_jax.tasks.benchmark.rounds import Row, in_turn
from attention_jax.tasks.benchmark.tools import Tools
from attention_jax.tasks.timing import seconds_of

ALL = "reference"


def measure(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Seconds of `config.attention.backend` and of the reference, forward alone and with gradients."""
    del tools
    asked = config.attention
    shape = (asked.heads, asked.length, asked.features)
    query, key, value = (jax.random.normal(jax.random.key(seed), shape) for seed in range(3))
    for is_causal in (False, True):
        for what, make in (("forward", forward), ("forward and gradient", with_gradient)):
            backends = [jax.jit(make(name, is_causal)) for name in (asked.backend, ALL)]
            ours, other = (functools.partial(seconds_of, program, query, key, value) for program in backends)
            for compile_it in (ours, other):
                compile_it()
            size = f"{asked.heads} × {asked.length:,} × {asked.length:,}, {asked.features} features"
            mask = ", causal" * is_causal
            yield Row(
                "attention", f"{asked.backend}, {what}{mask}: {size}", "s", *in_turn(config.rounds, ours, {ALL: other})
            )


def forward(backend: str, is_causal: bool, encoding: str = "none") -> Callable[..., Float[Array, "*batch q v"]]:
    """(query, key, value), heads at axis −3 → pooled values, with the bias of an encoding as it is initialised."""
    record = make_encoding(encoding)

    def pooled(query, key, value):
        heads, length, size = query.shape[-3:]
        params = record.init(jax.random.key(0), Spec(heads * size, heads, size, length, is_causal))
        positions = jnp.arange(length)[None]
        relative = Relative(record.bias, None, record.mix, params, positions, positions, record.pairs)
        mask = causal_mask(length, key.shape[-2]) if is_causal else None
        return attend(backend, query, key, value, mask=mask, relative=relative).values

    return pooled


def with_gradient(backend: str, is_causal: bool, encoding: str = "none") -> Callable[..., tuple[Array, ...]]:
    """(query, key, value) → the gradients of Σ sin of the pooled values."""
    pooled = forward(backend, is_causal, encoding)
    total = lambda *arrays: jnp.sum(jnp.sin(pooled(*arrays).astype(jnp.float32)))  # noqa: E731
    return jax.grad(total, argnums=(0, 1, 2))
