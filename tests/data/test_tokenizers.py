"""Words, vocabularies, and the way back to text."""

import pytest

from attention_jax.data.tokenizers import EOS, PAD, SPECIALS, UNK, WordTokenizer, split_words, until_end
from attention_jax.errors import UserError

TEXTS = ["Go .", "Go away!", "Va\u202f!", "I'm home, now."]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Go.", ["go", "."]),
        ("Ça\u202fva\xa0?", ["ça", "va", "?"]),
        ("I'm home, now.", ["i'm", "home", ",", "now", "."]),
        ("Wait...", ["wait", ".", ".", "."]),
        ("  ", []),
    ],
)
def test_words_are_lower_case_with_punctuation_apart(text, words):
    assert split_words(text) == words


def test_ids_are_specials_then_words_by_frequency():
    tokenizer = WordTokenizer.train(TEXTS, min_count=1, vocabulary=100)
    assert SPECIALS == ("<pad>", "<bos>", "<eos>", "<unk>")
    assert tokenizer.words(range(6)) == [*SPECIALS, "go", "."]


def test_rare_and_surplus_words_are_unknown():
    assert WordTokenizer.train(TEXTS, min_count=2, vocabulary=100).encode("go home") == [4, UNK]
    assert WordTokenizer.train(TEXTS, min_count=1, vocabulary=5).size == 5


def test_text_comes_back_up_to_the_end():
    tokenizer = WordTokenizer.train(TEXTS, min_count=1, vocabulary=100)
    ids = tokenizer.encode("I'm home, now.")
    assert tokenizer.decode([*ids, EOS, PAD, *ids]) == "i'm home, now."
    assert until_end([5, EOS, 7]) == [5]


def test_a_saved_tokenizer_is_the_same(tmp_path):
    tokenizer = WordTokenizer.train(["a\u2028b é\x85z c"], min_count=1, vocabulary=100)
    tokenizer.save(tmp_path / "v")
    loaded = WordTokenizer.load(tmp_path / "v")
    assert loaded.words(range(loaded.size)) == tokenizer.words(range(tokenizer.size))


def test_the_names_of_specials_in_a_text_are_unknown_words():
    tokenizer = WordTokenizer.train(["<pad> <eos> a a", "<pad> b"], min_count=1, vocabulary=100)
    assert tokenizer.encode("a <pad> <eos> b") == [4, UNK, UNK, 5]
    assert tokenizer.size == 6


@pytest.mark.parametrize("vocabulary", [0, 2, 4])
def test_a_vocabulary_without_room_for_words_is_refused(vocabulary):
    with pytest.raises(UserError, match=f"config.data.vocabulary={vocabulary}: every word would be <unk>"):
        WordTokenizer.train(TEXTS, min_count=1, vocabulary=vocabulary)


def test_a_vocabulary_of_nothing_but_unknown_is_refused():
    with pytest.raises(UserError, match=r"no word is seen 9 times.*--config.data.min_count"):
        WordTokenizer.train(TEXTS, min_count=9, vocabulary=100)
