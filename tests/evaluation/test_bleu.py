"""BLEU by sacreBLEU's own count, and the textbook's score by hand."""

import gc
import math
import weakref

import numpy as np
import pytest
from sacrebleu import corpus_bleu, corpus_chrf
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a, TokenizerRegexp

from attention_jax.evaluation.bleu import bleu_of_statistics, bleu_statistics, book_bleu, chrf, sacre_bleu
from attention_jax.evaluation.translation import (
    RowLosses,
    bleu_by_length,
    length_bins,
    losses,
    perplexity_by_length,
    row_losses,
    score_translations,
)
from attention_jax.ops.losses import Sums


@pytest.mark.parametrize("measure", [sacre_bleu, chrf, bleu_statistics])
def test_every_hypothesis_needs_its_references(measure):
    with pytest.raises(ValueError, match="there are 2 hypotheses and 1 references"):
        measure(["a b c d", "e"], [["a b c d"]])


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
    bins = length_bins(lengths, 3)
    found = bleu_by_length(lengths, texts, [[text] for text in texts], bins)
    assert {name: tuple(map(int, (name.split("-") * 2)[:2])) for name in found} == bins
    assert sum(low <= length <= high for low, high in bins.values() for length in lengths) == len(texts)
    assert list(found.values()) == pytest.approx([100] * len(found))


def test_bleu_by_length_counts_the_tokens_that_bleu_counts():
    references, tokens = [[text] for text in REFERENCES], ("letters", list)
    lengths = [3] * len(HYPOTHESES)
    (only,) = bleu_by_length(lengths, HYPOTHESES, references, length_bins(lengths), tokens).values()
    assert only == score_translations(HYPOTHESES, references, tokens)["bleu"]
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
    batches = [(np.array([index]), {}) for index in range(2000)]
    sums = Sums(np.array([30001.0], np.float32), np.array([12001.0], np.float32))
    found = losses(row_losses(lambda batch: sums, batches), words=0)
    assert found["loss"] == pytest.approx(30001 / 12001, rel=1e-12)


def test_perplexity_a_word_spreads_the_same_nats_over_words_that_pieces_are_of():
    found = losses(RowLosses(np.array([30.0, 10.0]), np.array([20.0, 5.0])), words=16)
    assert found["perplexity_per_word"] == pytest.approx(math.exp(40 / 16))
    assert found["perplexity"] == pytest.approx(math.exp(40 / 25))


def test_losses_of_rows_are_in_the_order_of_the_corpus_without_the_rows_that_fill_up():
    sums = {
        "long": Sums(np.array([5.0, 7.0, 0.0]), np.array([2.0, 3.0, 0.0])),
        "short": Sums(np.array([1.0, 2.0, 3.0]), np.ones(3)),
    }
    rows = row_losses(sums.__getitem__, [(np.array([0, 3]), "long"), (np.array([4, 1, 2]), "short")])
    assert rows.nats.tolist() == [5, 2, 3, 7, 1]
    assert rows.tokens.tolist() == [2, 1, 1, 3, 1]


def test_perplexity_by_length_is_of_each_group_s_own_tokens_and_all_groups_are_the_whole(random):
    lengths = random.integers(3, 12, size=60).tolist()
    rows = RowLosses(random.uniform(1, 9, size=60), random.integers(1, 9, size=60).astype(float))
    bins = length_bins(lengths)
    found = perplexity_by_length(lengths, rows, bins)
    nats = tokens = 0.0
    for name, (low, high) in bins.items():
        own = [index for index, length in enumerate(lengths) if low <= length <= high]
        assert found[name] == pytest.approx(math.exp(sum(rows.nats[own]) / sum(rows.tokens[own])))
        nats, tokens = nats + math.log(found[name]) * sum(rows.tokens[own]), tokens + sum(rows.tokens[own])
    assert math.exp(nats / tokens) == pytest.approx(losses(rows, 0)["perplexity"])


@pytest.mark.parametrize("kind", [Tokenizer13a, TokenizerRegexp])
def test_what_was_scored_before_is_not_kept(kind, monkeypatch):
    made, begin = weakref.WeakSet(), kind.__init__

    def recorded(self):
        made.add(self)
        begin(self)

    monkeypatch.setattr(kind, "__init__", recorded)
    sacre_bleu(["The first sentence ."], [["The first one ."]])
    first = len(made)
    for word in "abc":
        sacre_bleu([f"Sentence {word} ."], [[f"One {word} ."]])
    gc.collect()
    assert len(made) <= first


@pytest.mark.parametrize("measure", [sacre_bleu, chrf])
def test_references_that_are_texts_and_no_sentences_are_refused(measure):
    with pytest.raises(ValueError, match="references: a sentence has a list of translations, and 'a cat' is a text"):
        measure(["a cat"], ["a cat"])
    with pytest.raises(ValueError, match="and '' is a text"):
        measure([""], [""])
    with pytest.raises(ValueError, match="there are no sentences to measure"):
        measure([], [])
