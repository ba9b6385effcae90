"""Tokenizers: text to ids and back. Ids 0 to 3 are padding, begin, end and unknown in every one."""

import collections
import io
import random
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

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


def join_words(words: Sequence[str]) -> str:
    """The text of words: punctuation stands by the word before it."""
    return re.sub(r" ([,.!?])", r"\1", " ".join(words))


def spacy_words(language: str) -> Callable[[str], list[str]]:
    """The lower-cased tokens of spaCy's rules for a language ("de"), which need no trained model.

    Text is cut before it is lower-cased, as the published protocols do it; what is lower-cased already may be cut
    otherwise ("e.s.e."): the references of Multi30k's test 2016, lower-cased, have 99.97 BLEU.

    Raises UserError where spaCy is not installed or has no such rules.
    """
    try:
        import spacy
    except ImportError:
        raise UserError("spaCy is not installed, and its tokens are asked for: pip install 'spacy>=3.8'.") from None
    try:
        rules: Any = spacy.blank(language).tokenizer
        rules.add_special_case(SPECIALS[UNK], [{spacy.symbols.ORTH: SPECIALS[UNK]}])
    except (ImportError, AttributeError):
        raise UserError(f"config.data.languages: spaCy has no rules of its own for {language!r}.") from None
    return lambda text: [token.text.lower() for token in rules(text.strip()) if not token.is_space]


def join_spacy_words(words: Sequence[str]) -> str:
    """The text of spaCy's tokens: endings ('s, n't), hyphens between words and brackets are joined again."""
    text = join_words(words)
    text = re.sub(r"(?<=\w) (n't|['’](?:s|re|ve|ll|d|m))\b", r"\1", text)
    text = re.sub(r"(?<=\w) ([-/]) (?=\w)", r"\1", text)
    return re.sub(r"(?<=\() | (?=[):;])", "", text)


def moses_words(language: str) -> Callable[[str], list[str]]:
    """The lower-cased tokens of the Moses toolkit's rules (Koehn et al. 2007).

    Raises UserError for a language that it has no rules for.
    """
    from sacremoses import MosesTokenizer
    from sacremoses.corpus import NonbreakingPrefixes

    if language not in NonbreakingPrefixes().available_langs.values():
        raise UserError(f"config.data.languages: Moses has no rules for {language!r}.")
    tokenizer = MosesTokenizer(lang=language)
    return lambda text: tokenizer.tokenize(_plain(text), escape=False)


def join_moses_words(language: str) -> Callable[[Sequence[str]], str]:
    """The text of Moses's tokens."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=language)
    return lambda words: detokenizer.detokenize(list(words), unescape=False)


class Words(NamedTuple):
    """How a text of a language is cut into words, and put together again."""

    split_of: Callable[[str], Callable[[str], list[str]]]
    join_of: Callable[[str], Callable[[Sequence[str]], str]]


SPLITS = {
    "words": Words(lambda language: split_words, lambda language: join_words),
    "spacy": Words(spacy_words, lambda language: join_spacy_words),
    "moses": Words(moses_words, join_moses_words),
}


class WordTokenizer:
    """Words of one of `SPLITS` and a vocabulary, most frequent words first."""

    def __init__(self, vocabulary: Sequence[str], name: str = "words", language: str = ""):
        self._words = (*SPECIALS, *vocabulary)
        self._ids = {word: index for index, word in enumerate(self._words) if index >= len(SPECIALS)}
        self._split, self._join = SPLITS[name].split_of(language), SPLITS[name].join_of(language)
        self.size = len(self._words)

    @classmethod
    def train(
        cls, texts: Iterable[str], min_count: int, vocabulary: int, name: str = "words", language: str = ""
    ) -> "WordTokenizer":
        """At most `vocabulary` entries, specials included, of the words seen `min_count` times or more."""
        split = SPLITS[name].split_of(language)
        counts = collections.Counter(word for text in texts for word in split(text))
        kept = [word for word, count in counts.most_common() if count >= min_count and word not in SPECIALS]
        if not kept:
            raise UserError(
                f"no word is seen {min_count} times: every word would be <unk>. Lower --config.data.min_count."
            )
        return cls(kept[: vocabulary - len(SPECIALS)], name, language)

    @classmethod
    def load(cls, path: Path, name: str = "words", language: str = "") -> "WordTokenizer":
        return cls(path.read_text(encoding="utf-8").split("\n")[len(SPECIALS) : -1], name, language)

    def save(self, path: Path) -> None:
        path.write_text("".join(f"{word}\n" for word in self._words), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, UNK) for word in self._split(text)]

    def words(self, ids: Iterable[int]) -> list[str]:
        return [self._words[index] for index in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return self._join(self.words(until_end(ids)))


LEARNT_FROM = 1_000_000  # sentences at most that pieces are learnt from, so that memory is bounded


def sampled(texts: Iterable[str], most: int) -> list[str]:
    """All texts, or `most` of them drawn alike and always the same (Vitter 1985, algorithm R)."""
    drawn = random.Random(0)
    kept: list[str] = []
    for count, text in enumerate(texts):
        if count < most:
            kept.append(text)
        elif (place := drawn.randrange(count + 1)) < most:
            kept[place] = text
    return kept


def train_pieces(texts: Iterable[str], kind: str, vocabulary: int, **options: Any) -> bytes:
    """A sentencepiece model of `vocabulary` pieces at most (Kudo & Richardson 2018); `options` are its trainer's.

    Raises UserError for a vocabulary that cannot hold the characters.
    """
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=kind,
            vocab_size=vocabulary,
            hard_vocab_limit=False,
            max_sentence_length=2**30,  # bytes; longer lines would be left out in silence
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
            **options,
        )
    except RuntimeError as error:
        why = str(error).rpartition("] ")[2]
        if least := re.search(r"required_chars\. \d+ vs (\d+)", why):
            why = f"specials, single characters and bytes take {least[1]}. Raise it."
        raise UserError(f"config.data.vocabulary={vocabulary}: {why}") from None
    return model.getvalue()


class SubwordTokenizer:
    """Pieces of lower-cased text learnt by sentencepiece (Kudo & Richardson 2018): "unigram" or "bpe"."""

    def __init__(self, model: bytes):
        import sentencepiece

        self._model = model
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = self._pieces.vocab_size()

    @classmethod
    def train(cls, texts: Iterable[str], kind: str, vocabulary: int) -> "SubwordTokenizer":
        """`vocabulary` pieces, specials included; a small corpus may give fewer.

        Raises UserError for a vocabulary that cannot hold the corpus's characters.
        """
        kept = sampled((_plain(text) for text in texts), LEARNT_FROM)
        return cls(train_pieces(kept, kind, vocabulary, character_coverage=1.0))

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
    return WordTokenizer.train(texts, min_count, vocabulary, name, language)


def load_tokenizer(name: str, path: Path, language: str) -> Tokenizer:
    """A tokenizer as it was saved."""
    return SubwordTokenizer.load(path) if name in SUBWORDS else WordTokenizer.load(path, name, language)


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
