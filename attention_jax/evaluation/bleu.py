"""BLEU: sacreBLEU with its signature, and the textbook's own score under its own name."""

import collections
import math
from collections.abc import Sequence


def sacre_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a"
) -> tuple[float, str]:
    """Corpus BLEU in [0, 100], case ignored, and its signature (Papineni et al. 2002; Post 2018).

    `references[i]` holds every translation of sentence i, one or more. `tokenize` is sacreBLEU's; "none" takes
    text whose tokens stand between spaces.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase=True, tokenize=tokenize, force=True)
    return _scored(metric, hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """chrF2 in [0, 100], case ignored, and its signature (Popović 2015, through sacreBLEU)."""
    from sacrebleu.metrics import CHRF

    return _scored(CHRF(lowercase=True), hypotheses, references)


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


def _scored(metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    most = max(map(len, references))
    streams: list = [[group[k] if k < len(group) else None for group in references] for k in range(most)]
    return metric.corpus_score(list(hypotheses), streams).score, str(metric.get_signature())


def _ngrams(words: Sequence[str], n: int) -> collections.Counter:
    return collections.Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
