"""BLEU by sacreBLEU's own count, and the textbook's score by hand."""

import math

import pytest
from sacrebleu import corpus_bleu

from attention_jax.evaluation.bleu import book_bleu, sacre_bleu


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
