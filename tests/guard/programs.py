"""The programs whose cost is guarded: what the package computes, of small sizes, as functions and shapes.

Nothing is read or trained. Training is the call that the loop makes, of one step.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attention_jax.backends import attend
from attention_jax.launcher import experiments
from attention_jax.ops.masking import causal_mask
from attention_jax.ops.placing import ROWS
from attention_jax.ops.pooling import kernel_regression
from attention_jax.tasks.language_model import model as texts
from attention_jax.tasks.translation import model as pairs
from attention_jax.tasks.translation.programs import translator
from attention_jax.training.placement import shardings_of
from attention_jax.training.products import with_fast_gradients
from attention_jax.training.step import train_steps
from configs import language_model, nmt

NONE: Mapping[str, Any] = MappingProxyType({})
CONFIGS = {"nmt": nmt, "language_model": language_model}
BATCH, LENGTH, WORDS = 32, 16, 500  # of texts that are translated or written
SHORT = {
    "data.vocabulary": WORDS,
    "data.buckets": (LENGTH,),
    "data.max_length": LENGTH,
    "data.batch_tokens": BATCH * LENGTH,
}
# Two layers of each kind, which compile in seconds.
SMALL = {**SHORT, "model.kwargs.encoder_layers": 2, "model.kwargs.decoder_layers": 2}


class Program(NamedTuple):
    """A function, as `jax.jit` gives it; the shapes that it is called with; and the mesh that they lie on."""

    function: Any
    arguments: tuple
    mesh: Mesh | None = None

    def context(self) -> Any:
        """Where the program is traced and compiled."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)


def training(name: str, variant: str, overrides: Mapping[str, Any] = NONE, devices: int = 1) -> Program:
    """The training of a config by one step, over so many devices."""
    description = experiments.load(name).describe(_config(name, variant, overrides))
    mesh = description.layout.mesh(jax.devices()[:devices])
    state, batch, hyper = description.layout.arguments(mesh)
    steps = functools.partial(train_steps, *description.step.args)
    function = jax.jit(with_fast_gradients(steps), donate_argnums=0, out_shardings=shardings_of(state))
    table = jax.tree.map(functools.partial(_of_one_step, mesh), batch)
    return Program(function, (state, table, None, _integers(), hyper), mesh)


def translating(variant: str, program: str, overrides: Mapping[str, Any]) -> Program:
    """One of the programs of a `Translator`."""
    config = _config("nmt", variant, overrides)
    model = pairs.build(config, WORDS, WORDS)
    variables = jax.eval_shape(functools.partial(pairs.init, model), jax.random.key(0))
    batch = {
        "source": _integers(BATCH, LENGTH),
        "target": _integers(BATCH, LENGTH),
        "index": _integers(BATCH),
    }
    return Program(getattr(translator(model, config), program), ((variables,), batch))


def cached_step() -> Program:
    """A token more of each text, which has room for 256, by a language model."""
    model = texts.build(_config("language_model", TEXT), WORDS, 256)
    variables = jax.eval_shape(functools.partial(texts.init, model), jax.random.key(0))
    cache = jax.eval_shape(functools.partial(model.apply, method="init_cache"), variables, _integers(8, 256))
    step = functools.partial(model.apply, method="step")
    return Program(jax.jit(step, donate_argnums=2), (variables, _integers(8), cache))


def long_attention() -> Program:
    """Causal attention over 4,096 tokens in blocks, and its gradients."""
    array = jax.ShapeDtypeStruct((1, 4, 4096, 64), jnp.float32)

    def total(query, key, value):
        return jnp.sum(jnp.square(attend("chunked", query, key, value, mask=causal_mask(4096, 4096)).values))

    return Program(jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2))), (array, array, array))


def regression() -> Program:
    """Kernel regression of 20,000 queries by 20,000 pairs, in blocks, and its gradient by the width."""
    x, y = (jax.ShapeDtypeStruct((20_000, features), jnp.float32) for features in (2, 1))

    def total(width, query, key, value):
        return jnp.sum(jnp.square(kernel_regression(query, key, value, width=width)))

    return Program(jax.jit(jax.value_and_grad(total)), (jax.ShapeDtypeStruct((), jnp.float32), x, x, y))


SEED, BOOK, WIDE = "bahdanau,tatoeba_600", "transformer_book,tatoeba_600", "transformer_small,multi30k"
TEXT = "cpu,characters"
STACKED = {"model.stacked": True, "model.remat": "dots"}
BEAM, SAMPLED = {"evaluate.beams": 5}, {"evaluate.temperature": 1.0, "evaluate.top_p": 0.9}

PROGRAMS: dict[str, Callable[[], Program]] = {
    "bahdanau: training": lambda: training("nmt", SEED),
    "bahdanau: a beam of five": lambda: translating("bahdanau,multi30k", "n_best", {**SHORT, **BEAM}),
    "transformer_book: training": lambda: training("nmt", BOOK),
    "transformer_book: training on two devices": lambda: training("nmt", BOOK, devices=2),
    "transformer_small: training": lambda: training("nmt", WIDE, SMALL),
    "transformer_small: evaluation": lambda: translating(WIDE, "loss", SMALL),
    "transformer_small: greedy": lambda: translating(WIDE, "translate", SMALL),
    "transformer_small: a beam of five": lambda: translating(WIDE, "n_best", {**SMALL, **BEAM}),
    "transformer_small: sampling": lambda: translating(WIDE, "translate", {**SMALL, **SAMPLED}),
    "language model: training": lambda: training("language_model", TEXT),
    "language model: stacked training": lambda: training("language_model", TEXT, STACKED),
    "language model: a cached step": cached_step,
    "chunked attention: gradients": long_attention,
    "kernel regression: gradient": regression,
}


def _config(name: str, variant: str, overrides: Mapping[str, Any] = NONE) -> Any:
    config = CONFIGS[name].get_config(variant)
    config.update_from_flattened_dict(overrides)
    return config


def _of_one_step(mesh: Mesh, leaf: Any) -> Any:
    """The shape of a column of the batches of one step."""
    sharding = NamedSharding(mesh, PartitionSpec(None, ROWS))
    return jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype, sharding=sharding)


def _integers(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)
