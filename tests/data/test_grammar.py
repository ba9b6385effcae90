"""The embedded corpus: deterministic, distinct, correctly French, truly aligned."""

import re

import pytest

from attention_jax.data.grammar import sentence_pairs
from attention_jax.data.tokenizers import split_words

PAIRS = list(sentence_pairs(0))
TEXTS = [pair.target.lower() for pair in PAIRS]
BY_SOURCE = {pair.source: pair.target for pair in PAIRS}


def test_pairs_are_a_few_thousand_distinct_and_the_same_for_a_seed():
    assert len({pair.source for pair in PAIRS}) == len(PAIRS) == 5000
    assert list(sentence_pairs(0, 50)) == PAIRS[:50]
    assert list(sentence_pairs(1, 50)) != PAIRS[:50]


def test_every_target_word_is_aligned_to_source_words():
    for pair in PAIRS:
        source, target = split_words(pair.source), split_words(pair.target)
        assert len(pair.alignment) == len(target)
        assert all(positions and max(positions) < len(source) for positions in pair.alignment)
        assert target[-1] == source[-1]


LEXICON = {
    "chat": "cat",
    "femmes": "women",
    "arbre": "tree",
    "je": "i",
    "nous": "we us",
    "lourde": "heavy",
    "jamais": "never",
}


@pytest.mark.parametrize(("french", "english"), LEXICON.items())
def test_known_words_align_to_their_translations(french, english):
    found = 0
    for pair in PAIRS:
        source = split_words(pair.source)
        for word, positions in zip(split_words(pair.target), pair.alignment, strict=True):
            if word == french:
                assert {source[i] for i in positions} & set(english.split())
                found += 1
    assert found


@pytest.mark.parametrize(
    "wrong",
    [
        r"\b(le|la|je|ne|me|de|que) [aeiouhéèêâîô]",  # no elision
        r"\bà les?\b(?! [a-zé]+(s|z|t|ns) )",  # no contraction
        r"\b(un|le|mon|ce|cet) (femme|maison|reine|fille|voiture)s?\b",  # gender
        r"\b(une|la|ma|cette) (homme|chat|chien|livre|jardin)s?\b",
        r"\b(les|des|mes|ces|tes|ses|nos) (chat|homme|femme|maison)\b",  # number
        r"\bcet [^aeiouhéèêâîô]",
        r"\b(noir|blanc|vert|lourd) (femme|maison|chat|homme)",  # adjective before noun
        r"\bpas (un|une|des)\b",
    ],
)
def test_the_french_breaks_no_rule(wrong):
    assert not [text for text in TEXTS if re.search(wrong, text)]


def test_negation_is_around_the_verb_and_object_pronouns_before_it():
    assert any(re.search(r"\bne (le|la|les|me|nous) \w+ pas\b", text) for text in TEXTS)
    assert any(re.search(r"\bn'\w+ jamais\b", text) for text in TEXTS)
    assert any("est-ce qu'" in text for text in TEXTS)
    assert any(re.search(r"\baux? ", text) for text in TEXTS)
