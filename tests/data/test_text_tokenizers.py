"""Running text comes back from its tokens, character by character."""

import random

import numpy as np
import pytest

from attention_jax.data.text_sources import Chunk
from attention_jax.data.text_tokenizers import (
    LONGEST_ENCODED,
    TEXT_TOKENIZERS,
    ByteTokenizer,
    CharacterTokenizer,
    digest,
    dtype_of,
    encode,
    learn_text_tokenizer,
    load_text_tokenizer,
)
from attention_jax.data.tokenizers import BOS, EOS, PAD, SPECIALS, UNK
from attention_jax.errors import UserError

TEXT = "The Cat sat.\n\n  a\tb\r\nNaïve café — 東京 😀 e\u0301\u2028x\x85y \ufeff\x00 <eos>\n" * 3
VOCABULARY = 340


def tokenizer_of(kind, text=TEXT):
    return learn_text_tokenizer(kind, iter([Chunk(text)]), VOCABULARY)


def drawn_texts():
    draw = random.Random(0)
    return ["".join(draw.choices(TEXT, k=draw.randrange(40))) for _ in range(200)]


@pytest.mark.parametrize("kind", TEXT_TOKENIZERS)
def test_every_text_of_known_characters_comes_back(kind):
    tokenizer = tokenizer_of(kind)
    for text in (TEXT, "", "\n", "  ", *drawn_texts()):
        ids = encode(tokenizer, text)
        assert ids.dtype == dtype_of(tokenizer.size)
        assert UNK not in ids
        assert EOS not in ids
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", [kind for kind in TEXT_TOKENIZERS if kind != "characters"])
def test_bytes_and_pieces_know_every_character(kind):
    text = "".join(map(chr, [*range(0x2581), *range(0x2582, 0x3000), 0x1F984, 0x10FFFF]))
    assert (found := tokenizer_of(kind)).decode(encode(found, text)) == text


@pytest.mark.parametrize("kind", TEXT_TOKENIZERS)
def test_texts_encoded_together_are_those_encoded_alone(kind):
    tokenizer, texts = tokenizer_of(kind), drawn_texts()
    tokens, lengths = tokenizer.encode_all(texts)
    found = np.split(tokens, np.cumsum(lengths)[:-1])
    for one, text in zip(found, texts, strict=True):
        np.testing.assert_array_equal(one, encode(tokenizer, text))


@pytest.mark.parametrize("kind", TEXT_TOKENIZERS)
def test_a_saved_tokenizer_is_the_same_and_another_has_another_digest(kind, tmp_path):
    tokenizer = tokenizer_of(kind)
    (tmp_path / "v").write_bytes(tokenizer.content)
    again = load_text_tokenizer(kind, tmp_path / "v")
    assert again.size == tokenizer.size
    assert again.words(range(again.size)) == tokenizer.words(range(tokenizer.size))
    np.testing.assert_array_equal(encode(again, TEXT), encode(tokenizer, TEXT))
    assert digest(again) == digest(tokenizer)
    if kind != "bytes":
        assert digest(tokenizer_of(kind, TEXT + "zzz qqq" * 9)) != digest(tokenizer)


@pytest.mark.parametrize("kind", TEXT_TOKENIZERS)
def test_specials_are_nothing_in_a_text_and_the_unknown_is_shown(kind):
    tokenizer = tokenizer_of(kind)
    assert tokenizer.words(range(4)) == list(SPECIALS)
    first, last = encode(tokenizer, "The"), encode(tokenizer, "Cat")
    assert tokenizer.decode([BOS, *first, EOS, PAD, *last, EOS]) == "TheCat"
    assert tokenizer.decode([*first, UNK]) == "The\ufffd"


def test_characters_are_in_order_of_their_code_points_and_others_unknown():
    tokenizer = CharacterTokenizer("banana😀")
    assert tokenizer.size == 4 + 4
    np.testing.assert_array_equal(encode(tokenizer, "ab😀nz"), [4, 5, 7, 6, UNK])


def test_a_byte_is_its_value_past_the_specials_and_half_a_character_is_shown():
    ids = encode(ByteTokenizer(), "aé")
    np.testing.assert_array_equal(ids, [4 + byte for byte in "aé".encode()])
    assert ByteTokenizer().decode(ids[:-1]) == "a\ufffd"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_line_of_any_length_comes_back(kind):
    text = "abc ☃ " * LONGEST_ENCODED
    assert (found := tokenizer_of(kind)).decode(encode(found, text)) == text


def test_a_vocabulary_without_room_for_bytes_is_refused_by_its_key():
    with pytest.raises(
        UserError,
        match=r"config.data.vocabulary=100: special tokens, single characters and bytes alone are 2\d\d. Raise it.",
    ):
        learn_text_tokenizer("bpe", iter([Chunk(TEXT)]), 100)
    with pytest.raises(UserError, match="is white space alone"):
        learn_text_tokenizer("bpe", iter([Chunk(" \n \n")]), 400)
