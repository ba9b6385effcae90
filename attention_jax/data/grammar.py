"""The embedded corpus: English and French sentences of a small grammar, with their true word alignments.

French agrees in gender and number, puts the adjective after the noun, elides (le + arbre → l'arbre),
contracts (à + le → au), puts negation around the verb and object pronouns before it, and asks with
est-ce que. A French word has the positions of the English words that it translates; an elided or
contracted word has those of both its words.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from attention_jax.data.sources import Pair

LANGUAGES = ("en", "fr")
NUM_PAIRS = 5000
ELIDED = ("je", "me", "le", "la", "ne", "de", "que")
VOWELS = "aeiouhâéèêîô"


class Word(NamedTuple):
    """A French word, and the positions of the English words that it translates."""

    text: str
    positions: tuple[int, ...]


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
    """English words with their French, and what others must agree with; `person` indexes a verb's forms."""

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
DETERMINERS: dict[
    str, tuple
] = {  # English singular, plural; French masculine, feminine, before a vowel (None: as without), plural
    "the": ("the", "the", "le", "la", ("l'", "l'"), "les"),
    "a": ("a", "some", "un", "une", None, "des"),
    "my": ("my", "my", "mon", "ma", ("mon", "mon"), "mes"),
    "your": ("your", "your", "ton", "ta", ("ton", "ton"), "tes"),
    "his": ("his", "his", "son", "sa", ("son", "son"), "ses"),
    "our": ("our", "our", "notre", "notre", None, "nos"),
    "this": ("this", "these", "ce", "cette", ("cet", "cette"), "ces"),
}


MOODS = ("tell", "tell", "tell", "not", "never", "ask")
NEGATIONS = {"not": "pas", "never": "jamais"}
Clause = tuple[list[str], list[Word]]


def sentence_pairs(seed: int, count: int = NUM_PAIRS) -> Iterator[Pair]:
    """`count` distinct pairs with alignments, the same for the same seed."""
    choose = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        mood = choose.choice(MOODS)
        end = "?" if mood == "ask" else choose.choice("...!")
        pair = _pair(*choose.choice(PATTERNS)(choose, mood), end, f"embedded:{len(seen) + 1}")
        if pair.source not in seen:
            seen.add(pair.source)
            yield pair


def _with_object(choose: random.Random, mood: str) -> Clause:
    """Subject, verb, object."""
    english, french = _predicate(_subject(choose), choose.choice(TRANSITIVE), mood)
    thing = _noun_phrase(choose, choose.choice(PEOPLE + THINGS), is_negated=mood in NEGATIONS)
    return [*english, *thing.english], [*french, *_moved(thing.french, len(english))]


def _with_pronoun(choose: random.Random, mood: str) -> Clause:
    """The object is a pronoun, which French puts before the verb."""
    subject = _subject(choose)
    first_person = ("me", "us") if subject.person in (0, 3) else ()
    clitic = choose.choice([pair for pair in OBJECTS if pair[0] not in first_person])
    return _predicate(subject, choose.choice(TRANSITIVE), mood, clitic)


def _with_place(choose: random.Random, mood: str) -> Clause:
    """A goal or a listener, after à, which contracts with le and les."""
    verbs, nouns = choose.choice(((SPEECH, PEOPLE), (MOTION, PLACES)))
    english, french = _predicate(_subject(choose), choose.choice(verbs), mood)
    goal = _noun_phrase(choose, choose.choice(nouns))
    words = [Word("à", (len(english),)), *_moved(goal.french, len(english) + 1)]
    return [*english, "to", *goal.english], [*french, *_contracted(words)]


def _with_adjective(choose: random.Random, mood: str) -> Clause:
    """An adjective after "to be", which agrees with the subject."""
    subject, adjective = _subject(choose), choose.choice(ADJECTIVES)
    be, est = BE[0][subject.person], BE[1][subject.person]
    if mood == "ask":
        english = [be, *subject.english]
        french = [*_asking(), *_moved(subject.french, 1), Word(est, (0,))]
    else:
        english = [*subject.english, be, *((mood,) if mood in NEGATIONS else ())]
        verb = [Word(est, (len(subject.english),))]
        french = [*subject.french, *_negated(verb, mood, (len(english) - 1,))]
    agreed = Word(_agree(adjective, subject.is_feminine, subject.is_plural), (len(english),))
    return [*english, adjective[0]], [*french, agreed]


PATTERNS: Sequence[Callable[[random.Random, str], Clause]] = (
    _with_object,
    _with_object,
    _with_pronoun,
    _with_place,
    _with_adjective,
)


def _subject(choose: random.Random) -> Phrase:
    if choose.random() < 0.5:
        english, french, person, is_feminine, is_plural = choose.choice(PRONOUNS)
        return Phrase((english,), (Word(french, (0,)),), person, is_feminine, is_plural)
    return _noun_phrase(choose, choose.choice(PEOPLE))


def _noun_phrase(choose: random.Random, noun: Noun, is_negated: bool = False) -> Phrase:
    is_plural = choose.random() < 0.35
    determiner = DETERMINERS[choose.choice(list(DETERMINERS))]
    adjective = choose.choice(ADJECTIVES) if choose.random() < 0.4 else None
    english = (
        determiner[is_plural],
        *([adjective[0]] if adjective else []),
        noun.plural if is_plural else noun.singular,
    )
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


def _predicate(subject: Phrase, verb: Verb, mood: str, clitic: tuple[str, str] | None = None) -> Clause:
    """Subject and verb, and an object pronoun (English, French) if there is one."""
    third, do = (verb.third, "does") if subject.person == 2 else (verb.base, "do")
    before, after = {
        "tell": ((), third),
        "never": (("never",), third),
        "not": ((do, "not"), verb.base),
        "ask": ((do,), verb.base),
    }[mood]
    words = after.split()
    if mood == "ask":
        english, subject_french = [*before, *subject.english, *words], [*_asking(), *_moved(subject.french, 1)]
    else:
        english, subject_french = [*subject.english, *before, *words], list(subject.french)
    positions = range(len(english))
    french = [Word(verb.french[subject.person], tuple(positions[-len(words) :]))]
    if clitic:
        english.append(clitic[0])
        french.insert(0, Word(clitic[1], (len(positions),)))
    auxiliaries = tuple(positions[len(subject.english) : len(subject.english) + len(before)])
    return english, [*subject_french, *_negated(french, mood, auxiliaries)]


def _asking() -> list[Word]:
    return [Word("est-ce", (0,)), Word("que", (0,))]


def _negated(words: list[Word], mood: str, positions: tuple[int, ...]) -> list[Word]:
    if mood not in NEGATIONS:
        return words
    return [Word("ne", positions), *words, Word(NEGATIONS[mood], positions[-1:])]


def _moved(words: Sequence[Word], by: int) -> list[Word]:
    return [Word(word.text, tuple(position + by for position in word.positions)) for word in words]


def _contracted(words: list[Word]) -> list[Word]:
    short = {"le": "au", "les": "aux"}.get(words[1].text)
    return [Word(short, words[0].positions + words[1].positions), *words[2:]] if short else words


def _elided(words: list[Word]) -> list[Word]:
    """The words after elision: je, me, le, la, ne, de, que lose their vowel before another, and join that word.

    l' joins the next word always.
    """
    joined: list[Word] = []
    for word in reversed(words):
        follows_vowel = bool(joined) and joined[0].text[0] in VOWELS
        if word.text == "l'" or (word.text in ELIDED and follows_vowel):
            after = joined.pop(0)
            word = Word(word.text[:-1] + "'" + after.text, word.positions + after.positions)
        joined.insert(0, word)
    return joined


def _pair(english: list[str], french: list[Word], end: str, where: str) -> Pair:
    words = _elided(french)
    source = " ".join(english) + end
    target = " ".join(word.text for word in words) + (end if end == "." else f" {end}")
    alignment = (*(word.positions for word in words), (len(english),))
    return Pair(source[0].upper() + source[1:], target[0].upper() + target[1:], where, alignment)
