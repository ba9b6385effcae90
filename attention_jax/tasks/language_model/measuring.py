"""The metrics of a text: nats a token, perplexity a token and a word, bits a byte."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax

from attention_jax import stopping
from attention_jax.data.text import Counts
from attention_jax.data.windows import Rows
from attention_jax.evaluation.statistics import perplexity
from attention_jax.models.language_model import LanguageModel
from attention_jax.tasks.language_model.model import Texts, evaluation_loss
from attention_jax.training.placement import spread_rows, whole
from attention_jax.training.state import Variables

Total = Callable[[Variables, Iterable[Rows]], tuple[float, int]]  # nats of the targets that count, and their number


def total_of(model: LanguageModel) -> Total:
    """A function that sums the loss over batches of rows, in float64; each shape of rows has one compiled program."""
    program = jax.jit(functools.partial(evaluation_loss, model))

    def total(variables: Variables, batches: Iterable[Rows]) -> tuple[float, int]:
        nats, tokens = [], 0
        for rows in batches:
            stopping.poll()
            sums = program(variables, spread_rows(texts_of(rows), variables))
            nats.append(float(whole(sums.total)))  # waits, so that one batch is held at a time
            tokens += int(rows.is_counted.sum())
        return math.fsum(nats), tokens

    return total


def texts_of(rows: Rows) -> Texts:
    """Rows as a batch of texts."""
    held: Any = rows
    return Texts(held.tokens, held.targets, held.is_counted, None, held.segments, held.positions)


def figures_of(nats: float, tokens: int, counts: Counts) -> dict[str, float]:
    """Nats a token; perplexities exp(nats / tokens) and exp(nats / words); bits a byte, nats / ln 2 / bytes.

    `counts` are of the whole text. If `tokens` are a part of it, this part is taken to have as many words and bytes for
    each token as the whole.
    """
    loss = nats / tokens
    figures = {"loss": loss, "perplexity": perplexity(loss)}
    if counts.words:
        figures["perplexity_per_word"] = perplexity(loss * counts.tokens / counts.words)
    return figures | {"bits_per_byte": loss * counts.tokens / counts.bytes / math.log(2)}
