"""BLEU: sacreBLEU with its signature, and the textbook's own score under its own name."""

import collections
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

ORDER = 4  # the longest n-grams


def sacre_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a"
) -> tuple[float, str]:
    """Corpus BLEU in [0, 100], case ignored, and its signature (Papineni et al. 2002; Post 2018).

    `references[i]` holds every translation of sentence i, one or more. `tokenize` is sacreBLEU's; "none" takes
    text whose tokens stand between spaces. Raises ValueError for no sentences, for more of one side than of the other,
    and for references that are texts.
    """
    return _scored(_metric(tokenize), hypotheses, references)


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


def bleu_statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a"
) -> Int[np.ndarray, "sentences 10"]:
    """What BLEU is made of, a row a sentence: words, reference words, and of each order the matches and n-grams."""
    _require_pairs(hypotheses, references)
    metric = _metric(tokenize)
    return np.array(metric._extract_corpus_statistics(list(hypotheses), _streams(references)), np.int64)


def bleu_of_statistics(statistics: Float[np.ndarray, "... 10"]) -> Float[np.ndarray, "..."]:
    """Corpus BLEU in [0, 100] of summed rows of `bleu_statistics`, as sacreBLEU computes it.

    100 · min(1, e^(1 − r/c)) · ∏_n p_n^(1/4); of the orders without a match, the kth counts as 2^(−k) matches
    (Post 2018: "exp" smoothing).
    """
    length, reference = statistics[..., 0], statistics[..., 1]
    matches, ngrams = statistics[..., 2 : 2 + ORDER], statistics[..., 2 + ORDER :]
    is_none = matches == 0
    smoothed = np.where(is_none, 0.5 ** np.cumsum(is_none, axis=-1), matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(smoothed / ngrams).mean(axis=-1) + np.minimum(0, 1 - reference / length)
    return np.where((ngrams > 0).all(-1) & matches.any(-1), 100 * np.exp(logs), 0.0)


def _metric(tokenize: str) -> Any:
    """sacreBLEU's BLEU. Its tokenizers keep 65,536 lines, each of every metric that ever was: here none of before."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.tokenizers import tokenizer_13a

    for tokenizer in (tokenizer_13a.Tokenizer13a, tokenizer_13a.TokenizerRegexp):
        tokenizer.__call__.cache_clear()
    return BLEU(lowercase=True, tokenize=tokenize, force=True)


def _scored(metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    _require_pairs(hypotheses, references)
    return metric.corpus_score(list(hypotheses), _streams(references)).score, str(metric.get_signature())


def _require_pairs(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not references:
        raise ValueError("there are no sentences to measure.")
    if len(hypotheses) != len(references):
        raise ValueError(
            f"there are {len(hypotheses)} hypotheses and {len(references)} references: one each is needed."
        )
    for text in (group for group in references if isinstance(group, str)):
        raise ValueError(f"references: a sentence has a list of translations, and {text!r} is a text: [{text!r}].")


def _streams(references: Sequence[Sequence[str]]) -> list:
    """The first reference of every sentence, then the second where there is one, …"""
    most = max(map(len, references))
    return [[group[k] if k < len(group) else None for group in references] for k in range(most)]


def _ngrams(words: Sequence[str], n: int) -> collections.Counter:
    return collections.Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
