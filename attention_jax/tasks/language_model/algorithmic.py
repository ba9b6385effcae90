"""Algorithmic tasks as a language model's source: drawn inside the step, measured at every length."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from attention_jax.data.algorithmic import FIRST, PAD, TASKS, Example, example, require_task, size
from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.tasks.language_model.model import Texts, logits_of
from attention_jax.tasks.language_model.source import Source, lengths_of, lengths_told, require_positive
from attention_jax.training.state import Variables

HELD_OUT = 1_000_000  # folded into the key of what is measured, which no training step folds in


def open_algorithmic(config: ConfigDict, folder: Path | None) -> Source:
    """The tasks, at lengths of up to `data.length` in training and `data.factors` times that when measured."""
    del folder
    data = config.data
    require_positive(data, "length", "batch", "examples")
    lengths = lengths_of(data)
    with of_section("config.data"):
        shortest = {"shortest": data.shortest, "the least length of factors": lengths[0]}
        require_task(data.task, shortest, data.symbols)
    if data.shortest > data.length:
        raise UserError(f"config.data.shortest={data.shortest} is more than config.data.length={data.length}.")
    steps = jnp.arange(config.train.steps)[:, None]

    def call(seed, step, stop):
        del seed
        rows = np.arange(step, min(stop, step + config.train.steps_per_call))[:, None]
        return {"step": steps}, rows

    return Source(
        vocabulary=FIRST + data.symbols,
        trained=data.length,
        lengths=lengths,
        places=size(lengths[-1]) - 1,
        told=lengths_told(data),
        call=call,
        texts=functools.partial(_texts, data),
        measure=functools.partial(_measure, lengths),
        example=lambda config, length: _held_out(config.data, length, 1).tokens,
        steps_per_epoch=config.train.steps,
        traced=lambda config: {"task": _place(config.data.task)},
    )


def _texts(data: ConfigDict, row, hyper) -> Texts:
    """The batch of a step: texts of lengths drawn alike from `data.shortest` to `data.length`."""
    key = jax.random.fold_in(jax.random.fold_in(hyper["key"], 1), row["step"][0, 0])
    key_lengths, key_texts = jax.random.split(key)
    lengths = jax.random.randint(key_lengths, (data.batch,), data.shortest, data.length + 1)
    draw = functools.partial(example, hyper["task"], longest=data.length, symbols=data.symbols)
    return _as_texts(jax.vmap(draw)(jax.random.split(key_texts, data.batch), lengths))


def _held_out(data: ConfigDict, length: int, count: int) -> Texts:
    """What is measured at a length; one program draws it for every task and length."""
    longest = lengths_of(data)[-1]
    texts = _drawn(data.seed, _place(data.task), length, longest, count, data.symbols)
    return jax.tree.map(lambda side: side[:, : size(length) - 1], texts)


@functools.partial(jax.jit, static_argnames=("longest", "count", "symbols"))
def _drawn(seed, task, length, longest: int, count: int, symbols: int) -> Texts:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), HELD_OUT + length), count)
    return _as_texts(jax.vmap(lambda key: example(task, key, length, longest, symbols))(keys))


def _as_texts(drawn: Example) -> Texts:
    return Texts.of_whole(drawn.tokens, drawn.is_output, drawn.tokens != PAD)


def _place(task: str) -> Int[Array, ""]:
    return jnp.int32(list(TASKS).index(task))


def _measure(lengths: tuple[int, ...], model: LanguageModel):
    """The share of output tokens that are right, and of texts whose whole output is, at every length.

    Both are teacher forced: a whole output is right exactly where greedy decoding writes it.
    """

    @jax.jit
    def shares(variables: Variables, texts: Texts):
        tokens, targets, counts, *_ = texts
        is_right = jnp.argmax(logits_of(model, variables, tokens), axis=-1) == targets
        return jnp.sum(is_right & counts) / jnp.sum(counts), jnp.mean(jnp.all(is_right | ~counts, axis=1))

    def measure(variables: Variables, config: ConfigDict):
        texts = {length: _held_out(config.data, length, config.data.examples) for length in lengths}
        found = {str(length): jax.device_get(shares(variables, texts[length])) for length in lengths}
        return {
            name: {length: float(pair[place]) for length, pair in found.items()}
            for place, name in enumerate(("token_accuracy", "exact_match"))
        }

    return measure
