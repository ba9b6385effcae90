"""Tokenizers: text to ids and back. Ids 0 to 3 are padding, begin, end and unknown in every one."""

import collections
import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from attention_jax.errors import UserError

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
PAD, BOS, EOS, UNK = range(4)
_NO_BREAK_SPACES = str.maketrans({"\u202f": " ", "\xa0": " "})


class Tokenizer(Protocol):
    """What a corpus needs of a tokenizer."""

    size: int

    def encode(self, text: str) -> list[int]:
        """Ids of a sentence, without begin or end."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids up to the first end or padding."""

    def words(self, ids: Iterable[int]) -> list[str]:
        """One printable piece an id."""

    def save(self, path: Path) -> None:
        """Write it beside the data it made."""


def split_words(text: str) -> list[str]:
    """Lower-case words, with spaces put before , . ! ? and no-break spaces made plain."""
    return re.sub(r"(?<=\S)([,.!?])", r" \1", _plain(text)).split()


def spacy_words(language: str) -> Callable[[str], list[str]]:
    """The lower-cased tokens of spaCy's rules for a language ("de"), which need no trained model.

    Raises UserError where spaCy is not installed or knows no such language.
    """
    try:
        import spacy
    except ImportError:
        raise UserError("spaCy is not installed, and its tokens are asked for: pip install 'spacy>=3.8'.") from None
    try:
        rules: Any = spacy.blank(language).tokenizer
    except ImportError:
        raise UserError(f"config.data.languages: spaCy has no rules for {language!r}.") from None
    rules.add_special_case(SPECIALS[UNK], [{spacy.symbols.ORTH: SPECIALS[UNK]}])
    return lambda text: [token.text.lower() for token in rules(text.strip()) if not token.is_space]


SPLITS: dict[str, Callable[[str], Callable[[str], list[str]]]] = {
    "words": lambda language: split_words,
    "spacy": spacy_words,
}


class WordTokenizer:
    """Words of one of `SPLITS` and a vocabulary, most frequent words first."""

    def __init__(self, vocabulary: Sequence[str], split: Callable[[str], list[str]] = split_words):
        self._words = (*SPECIALS, *vocabulary)
        self._ids = {word: index for index, word in enumerate(self._words) if index >= len(SPECIALS)}
        self._split = split
        self.size = len(self._words)

    @classmethod
    def train(
        cls, texts: Iterable[str], min_count: int, vocabulary: int, split: Callable[[str], list[str]] = split_words
    ) -> "WordTokenizer":
        """At most `vocabulary` entries, specials included, of the words seen `min_count` times or more."""
        if vocabulary <= len(SPECIALS):
            raise UserError(
                f"config.data.vocabulary={vocabulary}: every word would be <unk>; the first {len(SPECIALS)} are taken."
            )
        counts = collections.Counter(word for text in texts for word in split(text))
        kept = [word for word, count in counts.most_common() if count >= min_count and word not in SPECIALS]
        if not kept:
            raise UserError(
                f"no word is seen {min_count} times: every word would be <unk>. Lower --config.data.min_count."
            )
        return cls(kept[: vocabulary - len(SPECIALS)], split)

    @classmethod
    def load(cls, path: Path, split: Callable[[str], list[str]] = split_words) -> "WordTokenizer":
        return cls(path.read_text(encoding="utf-8").split("\n")[len(SPECIALS) : -1], split)

    def save(self, path: Path) -> None:
        path.write_text("".join(f"{word}\n" for word in self._words), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, UNK) for word in self._split(text)]

    def words(self, ids: Iterable[int]) -> list[str]:
        return [self._words[index] for index in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return re.sub(r" ([,.!?])", r"\1", " ".join(self.words(until_end(ids))))


class SubwordTokenizer:
    """Pieces of lower-cased text learnt by sentencepiece (Kudo & Richardson 2018): "unigram" or "bpe"."""

    def __init__(self, model: bytes):
        import sentencepiece

        self._model = model
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = self._pieces.vocab_size()

    @classmethod
    def train(cls, texts: Iterable[str], kind: str, vocabulary: int) -> "SubwordTokenizer":
        """`vocabulary` pieces, specials included; a small corpus may give fewer of "unigram".

        Raises UserError for a vocabulary that the corpus cannot fill or that cannot hold its characters.
        """
        import sentencepiece

        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(_plain(text) for text in texts),
                model_writer=model,
                model_type=kind,
                vocab_size=vocabulary,
                hard_vocab_limit=kind != "unigram",
                character_coverage=1.0,
                pad_id=PAD,
                bos_id=BOS,
                eos_id=EOS,
                unk_id=UNK,
                pad_piece=SPECIALS[PAD],
                bos_piece=SPECIALS[BOS],
                eos_piece=SPECIALS[EOS],
                unk_piece=SPECIALS[UNK],
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise UserError(f"config.data.vocabulary={vocabulary}: {str(error).rpartition('] ')[2]}") from None
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: Path) -> "SubwordTokenizer":
        return cls(path.read_bytes())

    def save(self, path: Path) -> None:
        path.write_bytes(self._model)

    def encode(self, text: str) -> list[int]:
        return self._pieces.encode(_plain(text))

    def words(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces.id_to_piece(int(index)) for index in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return self._pieces.decode(until_end(ids))


SUBWORDS = ("unigram", "bpe")
TOKENIZERS = (*SPLITS, *SUBWORDS)


def train_tokenizer(name: str, texts: Iterable[str], language: str, min_count: int, vocabulary: int) -> Tokenizer:
    """The tokenizer that one of `TOKENIZERS` names, learnt from texts; `min_count` is for words alone."""
    if name in SUBWORDS:
        return SubwordTokenizer.train(texts, name, vocabulary)
    return WordTokenizer.train(texts, min_count, vocabulary, SPLITS[name](language))


def load_tokenizer(name: str, path: Path, language: str) -> Tokenizer:
    """A tokenizer as it was saved."""
    return SubwordTokenizer.load(path) if name in SUBWORDS else WordTokenizer.load(path, SPLITS[name](language))


def with_end(ids: Sequence[int], max_length: int) -> list[int]:
    """The ids and the end, cut to `max_length`."""
    return [*ids, EOS][:max_length]


def until_end(ids: Iterable[int]) -> list[int]:
    """The ids before the first end or padding."""
    kept = []
    for index in ids:
        if index in (EOS, PAD):
            break
        kept.append(int(index))
    return kept


def _plain(text: str) -> str:
    return text.translate(_NO_BREAK_SPACES).lower()
