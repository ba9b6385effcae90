"""Words, vocabularies, and the way back to text."""

import numpy as np
import pytest

from attention_jax.data import tokenizers
from attention_jax.data.grammar import sentence_pairs
from attention_jax.data.tokenizers import (
    EOS,
    PAD,
    SPECIALS,
    SUBWORDS,
    UNK,
    SubwordTokenizer,
    WordTokenizer,
    load_tokenizer,
    moses_words,
    sampled,
    spacy_words,
    split_words,
    train_tokenizer,
    until_end,
)
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


def test_a_vocabulary_of_nothing_but_unknown_is_refused():
    with pytest.raises(UserError, match=r"config.data.min_count=9: no word occurs so often"):
        WordTokenizer.train(TEXTS, min_count=9, vocabulary=100)


LINES = [
    f"{who} {verb} the {what}." for who in ("Ann", "Bob") for verb in ("sees", "seeks") for what in ("sea", "seal")
]


@pytest.mark.parametrize("kind", SUBWORDS)
def test_pieces_make_any_text_of_known_letters_and_come_back_from_their_file(kind, tmp_path):
    tokenizer = train_tokenizer(kind, LINES, "en", min_count=1, vocabulary=40)
    assert tokenizer.size <= 40
    assert tokenizer.words(range(4)) == list(SPECIALS)
    ids = tokenizer.encode("Bob\u202fsees the ann.")
    assert UNK not in ids
    assert tokenizer.decode([*ids, EOS, PAD, *ids]) == "bob sees the ann."
    assert UNK in tokenizer.encode("zürich")
    tokenizer.save(tmp_path / "v")
    again = load_tokenizer(kind, tmp_path / "v", "en")
    assert again.encode("Bob sees the ann.") == ids


def test_letters_of_a_very_long_line_have_pieces_too():
    assert UNK not in SubwordTokenizer.train([*LINES, "the seal sees " * 400 + "ß"], "bpe", 60).encode("ß")


def test_the_same_texts_give_the_same_pieces():
    models = [SubwordTokenizer.train(LINES, "bpe", 40)._model for _ in range(2)]
    assert models[0] == models[1]


@pytest.mark.parametrize("kind", SUBWORDS)
def test_a_small_corpus_has_fewer_pieces_and_one_that_cannot_hold_its_letters_is_refused_by_its_key(kind):
    assert SubwordTokenizer.train(LINES, kind, 4000).size < 100
    with pytest.raises(
        UserError,
        match=r"config.data.vocabulary=6: special tokens, single characters and bytes alone are \d\d. Raise it.",
    ):
        SubwordTokenizer.train(LINES, kind, 6)


def test_an_unknown_word_is_one_token_of_moses_too():
    assert moses_words("en")("a <unk> man.") == ["a", "<unk>", "man", "."]


def test_spacys_rules_split_as_the_published_protocol_does():
    pytest.importorskip("spacy", reason="spaCy is optional")
    words = spacy_words("en")
    assert words("A man's dog doesn't bark.") == ["a", "man", "'s", "dog", "does", "n't", "bark", "."]
    assert words("a <unk> man.") == ["a", "<unk>", "man", "."]
    tokenizer = WordTokenizer.train([text := "Two men's t-shirts (red) don't fit, here."], 1, 100, "spacy", "en")
    assert tokenizer.decode(tokenizer.encode(text)) == text.lower()
    for language in ("xx1", "zh"):
        with pytest.raises(UserError, match=f"spaCy has no rules for '{language}'"):
            spacy_words(language)


def test_of_many_texts_each_is_as_likely_to_be_learnt_from_and_of_few_all_are():
    texts = [str(i) for i in range(10_000)]
    assert sampled(texts, 10_000) == texts
    kept = np.array([int(text) for text in sampled(texts, 1000)])
    assert len(set(kept)) == 1000
    assert abs(kept.mean() - 5000) < 4 * 2887 / 1000**0.5
    assert sampled(iter(texts), 1000) == sampled(texts, 1000)


def test_moses_rules_split_and_join():
    tokenizer = WordTokenizer.train(["Don't go, it's (very) well-known."], 1, 100, "moses", "en")
    words = ["don", "'t", "go", ",", "it", "'s", "(", "very", ")", "well-known", "."]
    ids = tokenizer.encode("Don't go, it's (very) well-known.")
    assert tokenizer.words(ids) == words
    assert tokenizer.decode(ids) == "don't go, it's (very) well-known."
    with pytest.raises(UserError, match="Moses has no rules for 'xx'"):
        moses_words("xx")


def test_pieces_are_learnt_from_stretches_of_long_lines_and_from_whole_lines_of_others(monkeypatch):
    texts = [pair.source for pair in sentence_pairs(1, 200)]
    lines = []
    once = tokenizers.train_pieces
    monkeypatch.setattr(tokenizers, "train_pieces", lambda kept, *a, **k: lines.extend(kept) or once(kept, *a, **k))
    SubwordTokenizer.train(texts, "unigram", 80)
    assert lines == [text.lower() for text in texts]
    lines.clear()
    long = "abcdefghij" * 15_000
    SubwordTokenizer.train([*texts, long], "unigram", 80)
    assert max(map(len, lines)) == 1_000
    assert "".join(lines[len(texts) :]) == long
