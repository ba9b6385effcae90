"""BLEU by sacreBLEU's own count, and the textbook's score by hand."""

import math

import numpy as np
import pytest
from sacrebleu import corpus_bleu, corpus_chrf

from attention_jax.evaluation.bleu import bleu_of_statistics, bleu_statistics, book_bleu, chrf, sacre_bleu
from attention_jax.evaluation.translation import bleu_by_length, losses, score_translations
from attention_jax.ops.losses import Sums


def test_corpus_bleu_is_sacrebleus_with_case_ignored():
    hypotheses, references = (
        ["The cat sat on the mat .", "Hello there world !"],
        ["the cat sat on a mat.", "Hello world!"],
    )
    score, signature = sacre_bleu(hypotheses, [[r] for r in references])
    assert score == corpus_bleu(hypotheses, [references], lowercase=True).score
    assert "case:lc" in signature
    assert "tok:13a" in signature


def test_any_of_several_references_counts_even_when_sentences_have_different_numbers():
    hypotheses = ["je suis chez moi .", "va !"]
    score, _ = sacre_bleu(hypotheses, [["je suis à la maison .", "je suis chez moi ."], ["va !"]])
    assert score == pytest.approx(100)


def test_the_books_score_is_its_formula():
    assert book_bleu(list("abcd"), list("abcd")) == 1
    # p1 = 3/4, p2 = 1/3, no brevity penalty
    assert book_bleu(list("abxd"), list("abcd")) == pytest.approx((3 / 4) ** 0.5 * (1 / 3) ** 0.25)
    # two of four words: exp(1 - 4/2)
    assert book_bleu(list("ab"), list("abcd")) == pytest.approx(math.exp(-1))
    assert book_bleu(["a"], ["a"]) == 1  # no bigram to count
    assert book_bleu([], ["a"]) == 0


HYPOTHESES, REFERENCES = (
    ["The cat sat on the mat .", "Hello there big world !"],
    ["the cat sat on a mat.", "Hello world!"],
)


def test_chrf_is_sacrebleus_with_case_ignored():
    score, signature = chrf(HYPOTHESES, [[r] for r in REFERENCES])
    lower = ["".join(text.lower()) for text in HYPOTHESES], [[text.lower() for text in REFERENCES]]
    assert score == pytest.approx(corpus_chrf(*lower).score)
    assert "case:lc" in signature


def test_bleu_over_other_tokens_says_so_and_leaves_13a_beside_it():
    references = [[r] for r in REFERENCES]
    plain = score_translations(HYPOTHESES, references)
    assert plain["bleu"] == plain["bleu_13a"]
    assert "tok:13a" in plain["bleu_signature"]
    letters = score_translations(HYPOTHESES, references, ("letters", list))
    expected = corpus_bleu(
        [" ".join(text.lower()) for text in HYPOTHESES],
        [[" ".join(text.lower()) for text in REFERENCES]],
        tokenize="none",
    )
    assert letters["bleu"] == pytest.approx(expected.score)
    assert "tok:letters" in letters["bleu_signature"]
    assert letters["bleu_13a"] == plain["bleu_13a"]


def test_bleu_by_length_puts_every_sentence_in_one_group():
    texts = ["a b c d e f g h"[: 2 * n - 1] for n in (4, 5, 6, 7, 8, 8, 4, 5)]
    lengths = [len(text.split()) for text in texts]
    found = bleu_by_length(lengths, texts, [[text] for text in texts], groups=3)
    edges = [tuple(map(int, (name.split("-") * 2)[:2])) for name in found]
    assert sum(low <= length <= high for low, high in edges for length in lengths) == len(texts)
    assert list(found.values()) == pytest.approx([100] * len(found))


def test_bleu_by_length_counts_the_tokens_that_bleu_counts():
    references, splits = [[text] for text in REFERENCES], ("letters", list)
    (only,) = bleu_by_length([3] * len(HYPOTHESES), HYPOTHESES, references, splits).values()
    assert only == score_translations(HYPOTHESES, references, splits)["bleu"]
    assert only != score_translations(HYPOTHESES, references)["bleu"]


def test_bleu_of_summed_statistics_is_sacrebleus_whatever_sentences_are_summed(random):
    words = np.array(["a", "b", "c", "d", "e", "."])
    hypotheses, references = ([" ".join(random.choice(words, size=8)) for _ in range(40)] for _ in range(2))
    statistics = bleu_statistics(hypotheses, [[text] for text in references])
    for size in (1, 2, 5, 40):  # few sentences have orders without a match, which are smoothed
        chosen = random.integers(40, size=(20, size))
        expected = [corpus_bleu([hypotheses[i] for i in c], [[references[i] for i in c]]).score for c in chosen]
        np.testing.assert_allclose(bleu_of_statistics(statistics[chosen].sum(1)), expected, rtol=1e-6)


def test_a_loss_over_many_batches_is_not_rounded_away():
    batches = [(np.arange(1), {})] * 2000
    found = losses(lambda batch: Sums(np.float32(30001.0), np.float32(12001.0)), batches, words=0)
    assert found["loss"] == pytest.approx(30001 / 12001, rel=1e-12)


def test_perplexity_a_word_spreads_the_same_nats_over_words_that_pieces_are_of():
    sums = [Sums(np.float32(30.0), np.float32(20.0)), Sums(np.float32(10.0), np.float32(5.0))]
    found = losses(sums.__getitem__, [(None, 0), (None, 1)], words=16)
    assert found["perplexity_per_word"] == pytest.approx(math.exp(40 / 16))
    assert found["perplexity"] == pytest.approx(math.exp(40 / 25))
