"""A text as a language model's source: windows of it, measured with longer and longer context."""

import functools
import math
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax import hosts
from attention_jax.data.config import TextConfig
from attention_jax.data.text_importing import identify_text, load_text, require_usable
from attention_jax.data.tokenizers import PAD
from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.ops.losses import cross_entropy
from attention_jax.tasks.language_model.model import Texts, logits_of
from attention_jax.tasks.language_model.source import Source, length_keys, lengths_of, require_positive
from attention_jax.training.feeding import Batches
from attention_jax.training.placement import everywhere, whole
from attention_jax.training.state import Variables

TASK = "text"
STRIDE = 4  # windows begin at every quarter of their length
TOKENS_AT_ONCE = 4096  # that are measured


def open_text(config: ConfigDict, folder: Path | None) -> Source:
    """The text of `data.path` in windows of `data.length`. Without a folder nothing is read, and only shapes are right.

    Raises UserError for a text that is shorter than the contexts that are measured.
    """
    data = config.data
    require_usable(_which(data))
    if data.task != TASK:
        raise UserError(f"config.data.task={data.task!r}: with config.data.source='text' choose {TASK!r}.")
    require_positive(data, "length", "batch", "evaluated", "sampled")
    contexts = lengths_of(data)
    text = None if folder is None else hosts.in_turn(lambda: load_text(folder, _which(data)))
    if text is None:
        nothing = np.zeros(math.lcm(*contexts) + data.length + 2, np.uint16)
        train, held_out, vocabulary = nothing, nothing, data.vocabulary
    else:
        train, held_out = (text.splits[name].tokens for name in ("train", "validation"))
        vocabulary = text.vocabulary
    needed = (("train", train, data.length + 1), ("held_out", held_out, math.lcm(*contexts) + 2))
    for name, tokens, least in needed:
        if len(tokens) < least:
            raise UserError(
                f"config.data.path={data.path!r}: its {name} part has {len(tokens):,} tokens, and windows of "
                f"{', '.join(map(str, contexts))} need {least:,}. Give a longer text, or lower config.data.length or "
                "config.data.factors."
            )
    starts = np.arange(0, len(train) - data.length, max(data.length // STRIDE, 1))
    table = {"tokens": train[starts[:, None] + np.arange(data.length + 1)].astype(np.int32)}

    def batches(seed, step, stop):
        steps = range(step, min(stop, step + config.train.steps_per_call))
        drawn = [np.random.default_rng((seed, now)).integers(len(starts), size=data.batch) for now in steps]
        return Batches(np.stack(drawn), table)

    return Source(
        vocabulary=vocabulary,
        trained=data.length,
        lengths=contexts,
        longest=contexts[-1],
        length_keys=length_keys(data),
        batches=batches,
        texts=lambda rows, hyper: Texts.of_whole(rows["tokens"], *[rows["tokens"] != PAD] * 2),
        measure=functools.partial(_measure, data, held_out, contexts),
        example=lambda config, length: jnp.asarray(held_out[None, :length], jnp.int32),
        steps_per_epoch=config.train.steps,
        is_padded=True,
        text=text,
    )


def identify(data: ConfigDict) -> str:
    """The identity of the text. Raises UserError if its file is missing."""
    return identify_text(_which(data))


def _which(data: ConfigDict) -> TextConfig:
    return TextConfig(
        source="text",
        path=data.path,
        train_path="",
        validation_path="",
        test_path="",
        held_out=data.held_out,
        held_out_test=0.0,
        key="text",
        tokenizer=data.tokenizer,
        vocabulary=data.vocabulary,
        seed=data.seed,
    )


def _measure(data: ConfigDict, tokens: np.ndarray, contexts: tuple[int, ...], model: LanguageModel) -> Callable:
    """Perplexity of held-out tokens for every length of context.

    `perplexity` is of windows side by side, whose first tokens have little context: longer windows gain by that alone.
    `perplexity_sliding` is without that gain, of `data.sampled` tokens drawn uniformly, each with its whole context.
    """
    longest = contexts[-1]
    stretch = math.lcm(*contexts)  # so that windows of every length cover the same tokens
    evaluated = max(min(data.evaluated, len(tokens) - 1) // stretch, 1) * stretch
    last = np.sort(np.random.default_rng(data.seed).integers(longest, len(tokens), data.sampled))

    @functools.partial(jax.jit, static_argnums=3)
    def total(variables: Variables, windows, is_real, only_last: bool):
        def of_batch(batch):
            window, is_real = batch
            logits = logits_of(model, variables, window[:, :-1])
            counts = jnp.arange(logits.shape[1]) >= (logits.shape[1] - 1 if only_last else 0)
            return cross_entropy(logits, window[:, 1:], is_real[:, None] & counts[None]).total

        return jnp.sum(jax.lax.map(of_batch, (windows, is_real)))

    def perplexity(variables: Variables, starts: np.ndarray, context: int, only_last: bool) -> float:
        rows = max(min(TOKENS_AT_ONCE // context, len(starts)), 1)
        filled = np.concatenate([starts, starts[: -len(starts) % rows]])
        windows = tokens[filled[:, None] + np.arange(context + 1)].astype(np.int32).reshape(-1, rows, context + 1)
        is_real = (np.arange(len(filled)) < len(starts)).reshape(-1, rows)
        count = len(starts) * (1 if only_last else context)
        nats = total(variables, *everywhere((windows, is_real), variables), only_last)
        return float(np.exp(whole(nats) / count))

    def measure(variables: Variables, config: ConfigDict):
        del config
        return {
            "perplexity": {str(c): perplexity(variables, np.arange(0, evaluated, c), c, False) for c in contexts},
            "perplexity_sliding": {str(c): perplexity(variables, last - c, c, True) for c in contexts},
        }

    return measure
