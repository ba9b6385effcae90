"""Algorithmic tasks as a language model's source: drawn inside the training step, measured at every length."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from attention_jax import stopping
from attention_jax.data.algorithmic import FIRST, PAD, TASKS, Example, example, require_task, size
from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.tasks.language_model.model import Texts, logits_of
from attention_jax.tasks.language_model.source import Source, length_keys, lengths_of, require_positive
from attention_jax.tasks.sections import of_section
from attention_jax.training.feeding import Batches
from attention_jax.training.placement import everywhere, whole
from attention_jax.training.state import Variables

TOKENS_AT_ONCE = 2**16  # that are measured
HELD_OUT = 1_000_000  # folded into the key of texts that are measured; no training step folds in so much


def open_algorithmic(config: ConfigDict, folder: Path | None) -> Source:
    """The task, with inputs of up to `data.length` tokens in training, and `data.factors` times that when measured."""
    del folder
    data = config.data
    require_positive(data, "length", "batch", "examples")
    lengths = lengths_of(data)
    with of_section("config.data"):
        require_task(data.task, data.shortest, data.symbols)
    if lengths[0] < TASKS[data.task].shortest:
        raise UserError(
            f"config.data.factors={data.factors}: gives inputs of {lengths[0]} tokens, and task={data.task!r} needs "
            f"{TASKS[data.task].shortest} or more."
        )
    if data.shortest > data.length:
        raise UserError(f"config.data.shortest={data.shortest}: is more than config.data.length={data.length}.")
    if config.train.accumulate > 1:
        raise UserError(f"config.train.accumulate={config.train.accumulate}: texts are drawn inside a step. Set it 1.")
    table = {"step": np.arange(config.train.steps, dtype=np.int32)[:, None]}

    def batches(seed, step, stop):
        del seed
        rows = np.arange(step, min(stop, step + config.train.steps_per_call))[:, None]
        return Batches(rows, table)

    return Source(
        vocabulary=FIRST + data.symbols,
        trained=data.length,
        lengths=lengths,
        longest=size(lengths[-1]) - 1,
        length_keys=length_keys(data),
        batches=batches,
        texts=functools.partial(_texts, data),
        measure=functools.partial(_measure, lengths),
        example=lambda config, length: held_out(config.data, length, 1).tokens,
        steps_per_epoch=config.train.steps,
        is_padded=True,
        traced=lambda config: {"task": _index(config.data.task)},
    )


def _texts(data: ConfigDict, row, hyper) -> Texts:
    """The batch of a step: texts whose lengths are drawn uniformly from `data.shortest` to `data.length`."""
    key = jax.random.fold_in(jax.random.fold_in(hyper["key"], 1), row["step"][0, 0])
    key_lengths, key_texts = jax.random.split(key)
    lengths = jax.random.randint(key_lengths, (data.batch,), data.shortest, data.length + 1)
    draw = functools.partial(example, hyper["task"], longest=data.length, symbols=data.symbols)
    return _as_texts(jax.vmap(draw)(jax.random.split(key_texts, data.batch), lengths))


def held_out(data: ConfigDict, length: int, count: int) -> Texts:
    """The texts that are measured at a length; one program draws a task's at every length."""
    longest = lengths_of(data)[-1]
    texts = _drawn(data.seed, data.task, length, longest, count, data.symbols)
    return jax.tree.map(lambda side: side[:, : size(length) - 1], texts)


@functools.partial(jax.jit, static_argnames=("task", "longest", "count", "symbols"))
def _drawn(seed, task: str, length, longest: int, count: int, symbols: int) -> Texts:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), HELD_OUT + length), count)
    return _as_texts(jax.vmap(lambda key: example(task, key, length, longest, symbols))(keys))


def _as_texts(drawn: Example) -> Texts:
    return Texts.of_whole(drawn.tokens, drawn.is_output, drawn.tokens != PAD)


def _index(task: str) -> Int[Array, ""]:
    return jnp.int32(list(TASKS).index(task))


def _measure(lengths: tuple[int, ...], model: LanguageModel):
    """At every length, the share of output tokens that are right, and of texts whose whole output is right.

    Both are teacher forced: a whole output is right exactly if greedy decoding writes it.
    """

    @jax.jit
    def counts(variables: Variables, texts: Texts):
        tokens, targets, is_counted, is_text, *_ = texts
        is_right = jnp.argmax(logits_of(model, variables, tokens, is_text), axis=-1) == targets
        return jnp.sum(is_right & is_counted), jnp.sum(is_counted), jnp.sum(jnp.all(is_right | ~is_counted, axis=1))

    def shares(variables: Variables, texts: Texts) -> tuple[float, float]:
        examples, found = len(texts.tokens), []
        rows = _rows_at_once(examples, texts.tokens.shape[-1])
        for first in range(0, examples, rows):
            stopping.poll()
            batch = jax.tree.map(lambda side: side[first : first + rows], texts)  # noqa: B023
            found.append(whole(counts(variables, everywhere(batch, variables))))  # waits: one batch is held at a time
        tokens, asked, texts_right = (sum(map(int, column)) for column in zip(*found, strict=True))
        return tokens / asked, texts_right / examples

    def measure(variables: Variables, config: ConfigDict):
        by_length = {
            str(length): shares(variables, held_out(config.data, length, config.data.examples)) for length in lengths
        }
        return {
            name: {length: pair[index] for length, pair in by_length.items()}
            for index, name in enumerate(("token_accuracy", "exact_match"))
        }

    return measure


def _rows_at_once(examples: int, length: int) -> int:
    """How many texts are measured together: so many that their number divides that of all, for one compiled program."""
    most = max(TOKENS_AT_ONCE // length, 1)
    return max(rows for rows in range(1, min(most, examples) + 1) if examples % rows == 0)
