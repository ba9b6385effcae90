"""BLEU: sacreBLEU with its signature, and the textbook's own score under its own name."""

import collections
import math
from collections.abc import Sequence


def sacre_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """Corpus BLEU in [0, 100], case ignored, and its signature (Papineni et al. 2002; Post 2018).

    `references[i]` holds every translation of sentence i, one or more.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase=True)
    most = max(map(len, references))
    streams: list = [[group[k] if k < len(group) else None for group in references] for k in range(most)]
    score = metric.corpus_score(list(hypotheses), streams)
    return score.score, str(metric.get_signature())


def book_bleu(hypothesis: Sequence[str], reference: Sequence[str], k: int = 2) -> float:
    """exp(min(0, 1 − |r| / |h|)) ∏_{n ≤ k} p_n^(2⁻ⁿ), the score of Zhang et al., Dive into Deep Learning, §10.7.

    It is not BLEU: its weights are 2⁻ⁿ, and it scores one sentence. 0 for an empty hypothesis.
    """
    if not hypothesis:
        return 0.0
    score = math.exp(min(0.0, 1 - len(reference) / len(hypothesis)))
    for n in range(1, min(k, len(hypothesis)) + 1):
        matched = (_ngrams(hypothesis, n) & _ngrams(reference, n)).total()
        score *= (matched / (len(hypothesis) - n + 1)) ** 0.5**n
    return score


def _ngrams(words: Sequence[str], n: int) -> collections.Counter:
    return collections.Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
