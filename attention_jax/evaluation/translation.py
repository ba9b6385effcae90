"""Running a model's programs over many sentences and scoring what comes out."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from attention_jax.evaluation.bleu import book_bleu, sacre_bleu

Batch = dict[str, np.ndarray]
Batches = Iterable[tuple[np.ndarray, Batch]]  # places in the corpus, and padded rows


def mean_loss(loss: Callable[[Batch], Any], batches: Batches) -> float:
    """Nats per target token over all batches; `loss` gives a batch's sum and count."""
    sums = jax.device_get([loss(batch) for _, batch in batches])
    return float(sum(s.total for s in sums) / sum(s.count for s in sums))


def gather_rows(program: Callable[[Batch], Any], batches: Batches) -> list[np.ndarray]:
    """The rows of `program(batch)` for every sentence, in the corpus's order."""
    rows: dict[int, np.ndarray] = {}
    for index, batch in batches:
        rows.update(zip(index.tolist(), np.asarray(program(batch)), strict=False))
    return [rows[place] for place in sorted(rows)]


def score_translations(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """`bleu` and its `bleu_signature`."""
    bleu, signature = sacre_bleu(hypotheses, references)
    return {"bleu": bleu, "bleu_signature": signature}


def book_scores(hypotheses: dict[str, list[str]], references: dict[str, list[list[str]]]) -> dict[str, float]:
    """The textbook's k = 2 score of each sentence against its best reference, and their mean.

    Nothing where there is no sentence.
    """
    scores = {
        sentence: max(book_bleu(words, reference) for reference in references[sentence])
        for sentence, words in hypotheses.items()
    }
    return {"mean": float(np.mean(list(scores.values()))), **scores} if scores else {}
