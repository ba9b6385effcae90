"""Sentences that differ in one word."""

from attention_jax.data.minimal_pairs import minimal_pairs
from attention_jax.data.tokenizers import split_words


def test_sentences_of_a_couple_differ_in_one_word_and_none_is_in_two():
    found = list(minimal_pairs(3, 40))
    assert found == list(minimal_pairs(3, 40))
    assert len({pair.source for both in found for pair in both}) == 80
    for clean, changed in found:
        words = [split_words(pair.source) for pair in (clean, changed)]
        assert len(words[0]) == len(words[1])
        differ = [index for index, (a, b) in enumerate(zip(*words, strict=True)) if a != b]
        assert len(differ) == 1
        assert differ[0] < len(words[0]) - 1
        assert clean.target != changed.target
