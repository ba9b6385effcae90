"""The embedded corpus: English and French sentences of a small grammar, with their true word alignments.

French agrees in gender and number, puts the adjective after the noun, elides (le + arbre → l'arbre),
contracts (à + le → au), wraps negation around the verb and puts object pronouns before it. A French
word carries the set of English words it stands for; an elided or contracted word stands for both.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from attention_jax.data.sources import Pair

NUM_PAIRS = 4000
VOWELS = "aeiouhâéèêîô"


class Word(NamedTuple):
    """A French word and the English words, by their places, that it translates."""

    text: str
    places: tuple[int, ...]


class Noun(NamedTuple):
    singular: str
    plural: str
    french: str
    french_plural: str
    is_feminine: bool


class Verb(NamedTuple):
    """English base and third person; French present of je, tu, il, nous, ils."""

    base: str
    third: str
    french: tuple[str, str, str, str, str]


class Phrase(NamedTuple):
    """English words with their French, and what must agree with it. `person` indexes a verb's forms."""

    english: tuple[str, ...]
    french: tuple[Word, ...]
    person: int
    is_feminine: bool
    is_plural: bool


def _noun(english: str, french: str, gender: str, plural: str = "", french_plural: str = "") -> Noun:
    return Noun(english, plural or english + "s", french, french_plural or french + "s", gender == "f")


def _regular(base: str, third: str, stem: str) -> Verb:
    return Verb(base, third, (stem + "e", stem + "es", stem + "e", stem + "ons", stem + "ent"))


PEOPLE = (
    _noun("man", "homme", "m", plural="men"),
    _noun("woman", "femme", "f", plural="women"),
    _noun("girl", "fille", "f"),
    _noun("boy", "garçon", "m"),
    _noun("teacher", "professeur", "m"),
    _noun("queen", "reine", "f"),
    _noun("king", "roi", "m"),
    _noun("student", "élève", "m"),
    _noun("cat", "chat", "m"),
    _noun("dog", "chien", "m"),
    _noun("bird", "oiseau", "m", french_plural="oiseaux"),
    _noun("horse", "cheval", "m", french_plural="chevaux"),
)
THINGS = (
    _noun("house", "maison", "f"),
    _noun("tree", "arbre", "m"),
    _noun("car", "voiture", "f"),
    _noun("book", "livre", "m"),
    _noun("apple", "pomme", "f"),
    _noun("church", "église", "f", plural="churches"),
    _noun("garden", "jardin", "m"),
    _noun("star", "étoile", "f"),
    _noun("boat", "bateau", "m", french_plural="bateaux"),
    _noun("table", "table", "f"),
)
PLACES = (
    _noun("market", "marché", "m"),
    _noun("school", "école", "f"),
    _noun("hospital", "hôpital", "m", french_plural="hôpitaux"),
    _noun("beach", "plage", "f", plural="beaches"),
    _noun("museum", "musée", "m"),
    _noun("river", "rivière", "f"),
)
ADJECTIVES = (  # masculine, feminine; plurals add s unless the word ends in s or x
    ("black", "noir", "noire"),
    ("white", "blanc", "blanche"),
    ("green", "vert", "verte"),
    ("red", "rouge", "rouge"),
    ("happy", "heureux", "heureuse"),
    ("quick", "rapide", "rapide"),
    ("strange", "étrange", "étrange"),
    ("heavy", "lourd", "lourde"),
    ("calm", "calme", "calme"),
    ("strong", "fort", "forte"),
)
TRANSITIVE = (
    Verb("see", "sees", ("vois", "vois", "voit", "voyons", "voient")),
    _regular("love", "loves", "aim"),
    _regular("look for", "looks for", "cherch"),
    _regular("find", "finds", "trouv"),
    _regular("listen to", "listens to", "écout"),
    _regular("draw", "draws", "dessin"),
    Verb("choose", "chooses", ("choisis", "choisis", "choisit", "choisissons", "choisissent")),
    Verb("know", "knows", ("connais", "connais", "connaît", "connaissons", "connaissent")),
)
SPEECH = (_regular("speak", "speaks", "parl"),)
MOTION = (
    Verb("go", "goes", ("vais", "vas", "va", "allons", "vont")),
    Verb("run", "runs", ("cours", "cours", "court", "courons", "courent")),
)
BE = ("am", "are", "is", "are", "are"), ("suis", "es", "est", "sommes", "sont")
PRONOUNS = (
    ("i", "je", 0, False, False),
    ("you", "tu", 1, False, False),
    ("he", "il", 2, False, False),
    ("she", "elle", 2, True, False),
    ("we", "nous", 3, False, True),
    ("they", "ils", 4, False, True),
)
OBJECTS = (("him", "le"), ("her", "la"), ("them", "les"), ("me", "me"), ("us", "nous"))
DETERMINERS = {  # English singular, plural; French masculine, feminine, before a vowel (None: as without), plural
    "the": ("the", "the", "le", "la", ("l'", "l'"), "les"),
    "a": ("a", "some", "un", "une", None, "des"),
    "my": ("my", "my", "mon", "ma", ("mon", "mon"), "mes"),
    "this": ("this", "these", "ce", "cette", ("cet", "cette"), "ces"),
}


def sentence_pairs(seed: int, count: int = NUM_PAIRS) -> Iterator[Pair]:
    """`count` distinct pairs with alignments, the same for the same seed."""
    choose = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        pair = _pair(*choose.choice(PATTERNS)(choose), f"embedded:{len(seen) + 1}")
        if pair.source not in seen:
            seen.add(pair.source)
            yield pair


def _with_object(choose: random.Random) -> tuple[list[str], list[Word]]:
    """Subject, verb, object."""
    subject, verb = _subject(choose), choose.choice(TRANSITIVE)
    is_negative = choose.random() < 0.4
    english, french = _predicate(subject, verb, is_negative)
    thing = _noun_phrase(choose, choose.choice(PEOPLE + THINGS), is_negated=is_negative)
    return [*english, *thing.english], [*french, *_moved(thing, len(english))]


def _with_pronoun(choose: random.Random) -> tuple[list[str], list[Word]]:
    """The object is a pronoun, which French puts before the verb."""
    subject, verb = _subject(choose), choose.choice(TRANSITIVE)
    first_person = ("me", "us") if subject.person in (0, 3) else ()
    english_object, french_object = choose.choice([pair for pair in OBJECTS if pair[0] not in first_person])
    is_negative = choose.random() < 0.4
    place = len(_english_predicate(subject, verb, is_negative))
    english, french = _predicate(subject, verb, is_negative, Word(french_object, (place,)))
    return [*english, english_object], french


def _with_place(choose: random.Random) -> tuple[list[str], list[Word]]:
    """Going somewhere or speaking to someone: à contracts with le and les."""
    verbs, nouns = choose.choice(((SPEECH, PEOPLE), (MOTION, PLACES)))
    subject = _subject(choose)
    english, french = _predicate(subject, choose.choice(verbs), choose.random() < 0.4)
    goal = _noun_phrase(choose, choose.choice(nouns))
    words = [Word("à", (len(english),)), *_moved(goal, len(english) + 1)]
    return [*english, "to", *goal.english], [*french, *_contracted(words)]


def _with_adjective(choose: random.Random) -> tuple[list[str], list[Word]]:
    """Being something: the adjective agrees with the subject."""
    subject, adjective = _subject(choose), choose.choice(ADJECTIVES)
    english = [*subject.english, BE[0][subject.person]]
    verb = Word(BE[1][subject.person], (len(english) - 1,))
    is_negative = choose.random() < 0.4
    if is_negative:
        english.append("not")
    french = _negated([verb], (len(english) - 1,)) if is_negative else [verb]
    agreed = Word(_agree(adjective, subject.is_feminine, subject.is_plural), (len(english),))
    return [*english, adjective[0]], [*subject.french, *french, agreed]


PATTERNS: Sequence[Callable[[random.Random], tuple[list[str], list[Word]]]] = (
    _with_object,
    _with_object,
    _with_pronoun,
    _with_place,
    _with_adjective,
)


def _subject(choose: random.Random) -> Phrase:
    if choose.random() < 0.5:
        english, french, *agreement = choose.choice(PRONOUNS)
        return Phrase((english,), (Word(french, (0,)),), *agreement)
    return _noun_phrase(choose, choose.choice(PEOPLE))


def _noun_phrase(choose: random.Random, noun: Noun, is_negated: bool = False) -> Phrase:
    is_plural = choose.random() < 0.35
    determiner = DETERMINERS[choose.choice(list(DETERMINERS))]
    adjective = choose.choice(ADJECTIVES) if choose.random() < 0.4 else None
    english = (determiner[is_plural], *([adjective[0]] if adjective else []), noun.plural if is_plural else noun.singular)
    french = [
        Word(_determine(determiner, noun, is_plural, is_negated), (0,)),
        Word(noun.french_plural if is_plural else noun.french, (len(english) - 1,)),
    ]
    if adjective:
        french.append(Word(_agree(adjective, noun.is_feminine, is_plural), (1,)))
    return Phrase(english, tuple(french), 4 if is_plural else 2, noun.is_feminine, is_plural)


def _determine(determiner: tuple, noun: Noun, is_plural: bool, is_negated: bool) -> str:
    _, _, masculine, feminine, before_vowel, plural = determiner
    if is_negated and masculine == "un":
        return "de"  # un, une and des become de after pas
    if is_plural:
        return plural
    if before_vowel is not None and noun.french[0] in VOWELS:
        return before_vowel[noun.is_feminine]
    return feminine if noun.is_feminine else masculine


def _agree(adjective: tuple[str, str, str], is_feminine: bool, is_plural: bool) -> str:
    form = adjective[2] if is_feminine else adjective[1]
    return form + "s" if is_plural and form[-1] not in "sx" else form


def _predicate(
    subject: Phrase, verb: Verb, is_negative: bool, clitic: Word | None = None
) -> tuple[list[str], list[Word]]:
    english = _english_predicate(subject, verb, is_negative)
    first = len(subject.english) + (2 if is_negative else 0)
    words = [Word(verb.french[subject.person], tuple(range(first, len(english))))]
    if clitic:
        words = [clitic, *words]
    if is_negative:
        words = _negated(words, (first - 2, first - 1))
    return english, [*subject.french, *words]


def _english_predicate(subject: Phrase, verb: Verb, is_negative: bool) -> list[str]:
    is_third = subject.person == 2
    if is_negative:
        return [*subject.english, "does" if is_third else "do", "not", *verb.base.split()]
    return [*subject.english, *(verb.third if is_third else verb.base).split()]


def _negated(words: list[Word], places: tuple[int, ...]) -> list[Word]:
    return [Word("ne", places), *words, Word("pas", places[-1:])]


def _moved(phrase: Phrase, by: int) -> list[Word]:
    return [Word(word.text, tuple(place + by for place in word.places)) for word in phrase.french]


def _contracted(words: list[Word]) -> list[Word]:
    short = {"le": "au", "les": "aux"}.get(words[1].text)
    return [Word(short, words[0].places + words[1].places), *words[2:]] if short else words


def _elided(words: list[Word]) -> list[Word]:
    """je, me, le, la, ne, de before a vowel lose theirs and join the word that follows; so does l'."""
    joined: list[Word] = []
    for word in reversed(words):
        follows_vowel = bool(joined) and joined[0].text[0] in VOWELS
        if word.text == "l'" or (word.text in ("je", "me", "le", "la", "ne", "de") and follows_vowel):
            after = joined.pop(0)
            word = Word(word.text[0] + "'" + after.text, word.places + after.places)
        joined.insert(0, word)
    return joined


def _pair(english: list[str], french: list[Word], where: str) -> Pair:
    words = [*_elided(french), Word(".", (len(english),))]
    texts = (" ".join(english) + ".", " ".join(word.text for word in words[:-1]) + ".")
    return Pair(*(text[0].upper() + text[1:] for text in texts), where, tuple(word.places for word in words))
