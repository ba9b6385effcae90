"""A step's bits."""

import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translators import ONE_LAYER, build

from attention_jax.tasks.translation.model import loss
from attention_jax.training.hyper import traced
from attention_jax.training.optimizer import Rule, new_moments
from attention_jax.training.state import new_state
from attention_jax.training.step import Stepping, train_step

SIZES = {"embedding": 64, "hidden": 64, "width": 64, "feed_forward": 128}
SHARED = {"learning_rate": 1e-3, "warmup_steps": 0, "clip_norm": 1, "weight_decay": 0, "dropout": 0.1}
HYPER = SHARED | {"b1": 0.9, "b2": 0.999, "eps": 1e-8}
THREADS, CALLS = 2, 100


@pytest.mark.parametrize("name", ["transformer_small", "bahdanau"])
def test_every_call_on_every_thread_has_the_same_bits(name, random):
    model = build(name, source=500, target=500, **SIZES, **ONE_LAYER)
    source, target = jnp.asarray(random.integers(4, 500, (2, 16, 12)), jnp.int32)
    batch = {"source": source, "target": target}
    shapes = jax.eval_shape(model.init, jax.random.key(1), source, jnp.full(16, 12), target)
    variables = jax.tree.map(lambda leaf: jnp.asarray(random.normal(0, 0.1, leaf.shape), leaf.dtype), shapes)
    state = new_state(variables, new_moments(variables["params"], "adam"))
    hyper = traced(HYPER) | {"key": jax.random.key(2)}

    def training_loss(variables, batch, dropout, hyper):
        return loss(model, variables, batch, dropout, 0.1)

    program = functools.partial(train_step, training_loss, Rule("adam", "constant"), Stepping())
    optimised = {"xla_backend_optimization_level": 3}  # as a user's program is
    step = jax.jit(program).lower(state, batch, hyper).compile(optimised)
    calls = lambda _: {_bits(step(state, batch, hyper)) for _ in range(CALLS)}  # noqa: E731
    with ThreadPoolExecutor(THREADS) as threads:
        assert len(set.union(*threads.map(calls, range(THREADS)))) == 1


def _bits(result):
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result))
