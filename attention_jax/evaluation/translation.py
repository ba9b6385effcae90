"""Running a model's programs over many sentences and scoring what comes out."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from attention_jax.evaluation.bleu import book_bleu, chrf, sacre_bleu
from attention_jax.evaluation.statistics import perplexity

Batch = dict[str, np.ndarray]
Batches = Iterable[tuple[np.ndarray, Batch]]  # indices in the corpus, and padded rows
Bins = dict[str, tuple[int, int]]  # of lengths: the fewest and the most words of each
# The tokens that BLEU counts: their name, and how a text is cut into them. None: sacreBLEU's own.
BleuTokens = tuple[str, Callable[[str], list[str]]] | None


class RowLosses(NamedTuple):
    """Nats of every pair's target, and its tokens."""

    nats: Float[np.ndarray, " pairs"]
    tokens: Float[np.ndarray, " pairs"]


def row_losses(loss: Callable[[Batch], Any], batches: Batches) -> RowLosses:
    """`loss` gives the sums and counts of a batch's rows; pairs are in the corpus's order."""
    rows = [(indices, jax.device_get(loss(batch))) for indices, batch in batches]
    order = np.argsort(np.concatenate([indices for indices, _ in rows]))
    columns = (
        np.concatenate([getattr(sums, part)[: len(indices)] for indices, sums in rows]) for part in ("total", "count")
    )
    return RowLosses(*(np.asarray(column, np.float64)[order] for column in columns))


def losses(rows: RowLosses, words: int) -> dict[str, float]:
    """Nats per target token over all pairs, and perplexity per token and per word.

    `words` counts the words of the same targets, ends included, or is 0 where they are not known.
    """
    total, count = float(rows.nats.sum()), float(rows.tokens.sum())
    found = {"loss": total / count, "perplexity": perplexity(total / count)}
    return found | ({"perplexity_per_word": perplexity(total / words)} if words else {})


def perplexity_by_length(lengths: Sequence[int], rows: RowLosses, bins: Bins) -> dict[str, float]:
    """Perplexity a target token of the pairs in each bin, by the number of source words of every pair."""
    words = np.asarray(lengths)
    inside = {name: (low <= words) & (words <= high) for name, (low, high) in bins.items()}
    return {
        name: perplexity(float(rows.nats[chosen].sum()) / float(rows.tokens[chosen].sum()))
        for name, chosen in inside.items()
        if chosen.any()
    }


def gather_rows(program: Callable[[Batch], Any], batches: Batches) -> list[np.ndarray]:
    """The rows of `program(batch)` for every sentence, in the corpus's order."""
    rows: dict[int, np.ndarray] = {}
    for index, batch in batches:
        rows.update(zip(index.tolist(), np.asarray(program(batch)), strict=False))
    return [rows[index] for index in sorted(rows)]


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    tokens: BleuTokens = None,
) -> dict[str, Any]:
    """`bleu`, `bleu_13a` and `chrf` with their signatures.

    `bleu` is sacreBLEU's own, or over `tokens`.
    """
    scores = {
        "bleu": _bleu(hypotheses, references, tokens),
        "bleu_13a": sacre_bleu(hypotheses, references),
        "chrf": chrf(hypotheses, references),
    }
    named = ((name, *scored) for name, scored in scores.items())
    return {key: value for name, score, sign in named for key, value in ((name, score), (f"{name}_signature", sign))}


def spaced(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], split: Callable[[str], list[str]]
) -> tuple[list[str], list[list[str]]]:
    """Texts whose tokens stand between spaces."""
    return [" ".join(split(text)) for text in hypotheses], [[" ".join(split(t)) for t in group] for group in references]


def length_bins(lengths: Sequence[int], count: int = 5) -> Bins:
    """About equally many sentences each, by their numbers of words: {"3-7": (3, 7), …}."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, count + 1)[1:], method="higher"))
    found, low = {}, min(lengths)
    for high in edges.tolist():
        found[f"{low}-{high}" if low < high else f"{low}"] = (low, high)
        low = high + 1
    return found


def bleu_by_length(
    lengths: Sequence[int],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    bins: Bins,
    tokens: BleuTokens = None,
) -> dict[str, float]:
    """`bleu` of the sentences in each bin, by their numbers of source words."""
    found = {}
    for name, (low, high) in bins.items():
        inside = [i for i, length in enumerate(lengths) if low <= length <= high]
        found[name], _ = _bleu([hypotheses[i] for i in inside], [references[i] for i in inside], tokens)
    return found


def book_scores(hypotheses: dict[str, list[str]], references: dict[str, list[list[str]]]) -> dict[str, float]:
    """The textbook's k = 2 score of each sentence against its best reference, and their mean.

    Nothing where there is no sentence.
    """
    scores = {
        sentence: max(book_bleu(words, reference) for reference in references[sentence])
        for sentence, words in hypotheses.items()
    }
    return {"mean": float(np.mean(list(scores.values()))), **scores} if scores else {}


def _bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokens: BleuTokens) -> tuple[float, str]:
    if tokens is None:
        return sacre_bleu(hypotheses, references)
    name, split = tokens
    bleu, signature = sacre_bleu(*spaced(hypotheses, references, split), tokenize="none")
    return bleu, signature.replace("tok:none", f"tok:{name}")
