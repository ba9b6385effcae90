"""Tokenizers of sentences: text to ids and back. In all of them ids 0 to 3 are padding, begin, end and unknown."""

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


class Tokenizer(Protocol):
    """What every tokenizer of a corpus has."""

    size: int

    def encode(self, text: str) -> list[int]:
        """Ids of a sentence, without begin or end."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids before the first end or padding."""

    def words(self, ids: Iterable[int]) -> list[str]:
        """A printable piece for each id."""

    def save(self, path: Path) -> None:
        """Write the tokenizer to a file."""


def split_words(text: str) -> list[str]:
    """The lower-cased words of a text; , . ! ? are cut from what is before them, and a no-break space is a space."""
    return re.sub(r"(?<=\S)([,.!?])", r" \1", plain(text)).split()


def join_words(words: Sequence[str]) -> str:
    """The text of words, without a space before , . ! ?"""
    return re.sub(r" ([,.!?])", r"\1", " ".join(words))


def spacy_words(language: str) -> Callable[[str], list[str]]:
    """The lower-cased tokens of spaCy's rules for a language ("de"), which need no trained model.

    Text is tokenized before it is lower-cased, as in the published protocols. Tokens of lower-cased text may differ
    ("e.s.e."): the references of Multi30k's test 2016, lower-cased first, have 99.97 BLEU.

    Raises UserError if spaCy is not installed, or has no rules for the language.
    """
    try:
        import spacy
    except ImportError:
        raise UserError("spaCy is not installed, and its tokens are needed here: pip install 'spacy>=3.8'.") from None
    try:
        rules: Any = spacy.blank(language).tokenizer
        rules.add_special_case(SPECIALS[UNK], [{spacy.symbols.ORTH: SPECIALS[UNK]}])
    except (ImportError, AttributeError):
        raise UserError(
            f"config.data.languages: spaCy has no rules for {language!r}. Give a language's code, such as 'de', or "
            "choose 'words'."
        ) from None
    return lambda text: [token.text.lower() for token in rules(text.strip()) if not token.is_space]


def join_spacy_words(words: Sequence[str]) -> str:
    """The text of spaCy's tokens: endings ('s, n't), hyphens between words, and brackets are joined."""
    text = join_words(words)
    text = re.sub(r"(?<=\w) (n't|['’](?:s|re|ve|ll|d|m))\b", r"\1", text)
    text = re.sub(r"(?<=\w) ([-/]) (?=\w)", r"\1", text)
    return re.sub(r"(?<=\() | (?=[):;])", "", text)


def moses_words(language: str) -> Callable[[str], list[str]]:
    """The lower-cased tokens of the Moses toolkit's rules (Koehn et al. 2007).

    Raises UserError for a language without rules.
    """
    from sacremoses import MosesTokenizer
    from sacremoses.corpus import NonbreakingPrefixes

    if language not in NonbreakingPrefixes().available_langs.values():
        raise UserError(
            f"config.data.languages: Moses has no rules for {language!r}. Give a language's code, such as 'de', or "
            "choose 'words'."
        )
    tokenizer = MosesTokenizer(lang=language)
    unknown = re.escape(SPECIALS[UNK])  # one token, as it was when it was written
    return lambda text: tokenizer.tokenize(plain(text), escape=False, protected_patterns=[unknown])


def join_moses_words(language: str) -> Callable[[Sequence[str]], str]:
    """The text of Moses's tokens."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=language)
    return lambda words: detokenizer.detokenize(list(words), unescape=False)


class WordRules(NamedTuple):
    """From a language to the function that splits a text into words, and to the one that joins them again."""

    split_of: Callable[[str], Callable[[str], list[str]]]
    join_of: Callable[[str], Callable[[Sequence[str]], str]]


WORD_RULES = {
    "words": WordRules(lambda language: split_words, lambda language: join_words),
    "spacy": WordRules(spacy_words, lambda language: join_spacy_words),
    "moses": WordRules(moses_words, join_moses_words),
}


class WordTokenizer:
    """Words by one of `WORD_RULES`, and a vocabulary, the most frequent words first."""

    def __init__(self, vocabulary: Sequence[str], name: str = "words", language: str = ""):
        self._words = (*SPECIALS, *vocabulary)
        self._ids = {word: index for index, word in enumerate(self._words) if index >= len(SPECIALS)}
        self._split, self._join = WORD_RULES[name].split_of(language), WORD_RULES[name].join_of(language)
        self.size = len(self._words)

    @classmethod
    def train(
        cls, texts: Iterable[str], min_count: int, vocabulary: int, name: str = "words", language: str = ""
    ) -> "WordTokenizer":
        """At most `vocabulary` entries, specials included, of words that occur `min_count` times or more."""
        split = WORD_RULES[name].split_of(language)
        counts = collections.Counter(word for text in texts for word in split(text))
        kept = [word for word, count in counts.most_common() if count >= min_count and word not in SPECIALS]
        if not kept:
            raise UserError(
                f"config.data.min_count={min_count}: no word occurs so often; all would be <unk>. Lower it."
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


LONGEST = 1_000  # characters that pieces are learnt from at once: the time for a stretch grows with its square
LEARNT_FROM = 1_000_000  # the most sentences that pieces are learnt from, so that memory is bounded


def sampled(texts: Iterable[str], most: int) -> list[str]:
    """All texts, or `most` of them, drawn uniformly and always the same (Vitter 1985, algorithm R)."""
    drawn = random.Random(0)
    kept: list[str] = []
    for count, text in enumerate(texts):
        if count < most:
            kept.append(text)
        elif (index := drawn.randrange(count + 1)) < most:
            kept[index] = text
    return kept


def train_pieces(texts: Iterable[str], algorithm: str, vocabulary: int, **options: Any) -> bytes:
    """A sentencepiece model of at most `vocabulary` pieces (Kudo & Richardson 2018); `options` are its trainer's.

    `algorithm` is "unigram" or "bpe". Raises UserError for a vocabulary that is too small for the characters.
    """
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=algorithm,
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
        why = str(error).rpartition("] ")[2].strip() or "is too small for the special tokens and the text. Raise it."
        if least := re.search(r"required_chars\. \d+ vs (\d+)", why):
            why = f"special tokens, single characters and bytes alone are {least[1]}. Raise it."
        raise UserError(f"config.data.vocabulary={vocabulary}: {why}") from None
    return model.getvalue()


def processor_of(model: bytes) -> Any:
    """What sentencepiece makes of a model. Raises ValueError where it is none."""
    import sentencepiece

    if not model:  # sentencepiece takes it for none given
        raise ValueError("empty")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, OSError) as error:
        raise ValueError(f"not a model of sentencepiece ({str(error).splitlines()[0]})") from None


class SubwordTokenizer:
    """Pieces of lower-cased text, learnt by sentencepiece (Kudo & Richardson 2018): "unigram" or "bpe"."""

    def __init__(self, model: bytes):
        self._model = model
        self._pieces = processor_of(model)
        self.size = self._pieces.vocab_size()

    @classmethod
    def train(cls, texts: Iterable[str], algorithm: str, vocabulary: int) -> "SubwordTokenizer":
        """`vocabulary` pieces, specials included; a small corpus gives fewer.

        Raises UserError for a vocabulary that is too small for the corpus's characters.
        """
        cut = (text[start : start + LONGEST] for text in map(plain, texts) for start in range(0, len(text), LONGEST))
        kept = sampled(cut, LEARNT_FROM)
        return cls(train_pieces(kept, algorithm, vocabulary, character_coverage=1.0))

    @classmethod
    def load(cls, path: Path) -> "SubwordTokenizer":
        return cls(path.read_bytes())

    def save(self, path: Path) -> None:
        path.write_bytes(self._model)

    def encode(self, text: str) -> list[int]:
        return self._pieces.encode(plain(text))

    def words(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces.id_to_piece(int(index)) for index in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return self._pieces.decode(until_end(ids))


SUBWORDS = ("unigram", "bpe")
TOKENIZERS = (*WORD_RULES, *SUBWORDS)


def train_tokenizer(name: str, texts: Iterable[str], language: str, min_count: int, vocabulary: int) -> Tokenizer:
    """A tokenizer of `TOKENIZERS`, learnt from texts; only words have a `min_count`."""
    if name in SUBWORDS:
        return SubwordTokenizer.train(texts, name, vocabulary)
    return WordTokenizer.train(texts, min_count, vocabulary, name, language)


def load_tokenizer(name: str, path: Path, language: str) -> Tokenizer:
    """A tokenizer from its file. Raises UserError for a file that is none."""
    try:
        return SubwordTokenizer.load(path) if name in SUBWORDS else WordTokenizer.load(path, name, language)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path}: not a vocabulary of {name!r} ({error}). Put the original file back.") from None


def until_end(ids: Iterable[int]) -> list[int]:
    """The ids before the first end or padding."""
    kept = []
    for index in ids:
        if index in (EOS, PAD):
            break
        kept.append(int(index))
    return kept


def plain(text: str) -> str:
    """The text in lower case, with spaces for no-break spaces."""
    return text.replace("\u202f", " ").replace("\xa0", " ").lower()
