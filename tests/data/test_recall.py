"""Tasks of recall against a reader in plain Python, which has the input and what is given of the output alone."""

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.data.algorithmic import TASKS, example, require_task
from attention_jax.data.drawn import END, FIRST, PAD, SEP
from attention_jax.data.recall import CHAINS, NEEDLES, VARIABLES, WORDS, alphabets

LONGEST, SYMBOLS, COUNT = 64, 31, 40
KEYS, VALUES, NOISE = alphabets(SYMBOLS)
LENGTHS = (16, 23, LONGEST)
PAIRS = {"needle": lambda length: 1, "needles": lambda length: NEEDLES, "associative_recall": lambda n: min(n // 4, 10)}


@pytest.fixture(scope="module")
def drawn():
    """task → length → texts, by one program."""

    @jax.jit
    def draw(task, length):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), length), COUNT)
        return jax.vmap(lambda key: example(task, key, length, LONGEST, SYMBOLS))(keys)

    names = (*PAIRS, "variable_tracking", "frequent_words")
    return {name: {n: draw(jnp.int32([*TASKS].index(name)), jnp.int32(n)) for n in LENGTHS} for name in names}


def sides(texts):
    """Input, output, and which tokens of the output are asked for, of every text."""
    for tokens, is_output in zip(*map(np.asarray, texts), strict=True):
        separator, end = [*tokens].index(SEP), [*tokens].index(END)
        assert (tokens[end + 1 :] == PAD).all()
        assert not is_output[: separator + 1].any()
        assert not is_output[end:].any()
        x, y = ([int(token) - FIRST for token in part] for part in (tokens[:separator], tokens[separator + 1 : end]))
        yield x, y, [bool(asked) for asked in is_output[separator + 1 : end]]


def pairs_of(x):
    """What is hidden in an input, in order: every token that is not noise, and the token after it."""
    found, rest = [], iter(x)
    for token in rest:
        if token not in NOISE:
            found.append((token, next(rest)))
    return found


def followed(pairs):
    """The value that each variable has in the end."""
    value = {}
    for name, source in pairs:
        value[name] = value.get(source, source)
    return value


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("task", PAIRS)
def test_a_reader_finds_the_value_of_every_key_that_is_given(drawn, task, length):
    for x, y, asked in sides(drawn[task][length]):
        pairs = pairs_of(x)
        assert len(x) == length
        assert len(pairs) == len(dict(pairs)) == len({value for _, value in pairs}) == PAIRS[task](length)
        assert all(key in KEYS and value in VALUES for key, value in pairs)
        assert not any(asked[::2])
        assert asked[1::2] == [key not in y[: 2 * place : 2] for place, key in enumerate(y[::2])]
        assert [dict(pairs)[key] for key in y[::2]] == y[1::2]
        assert len(y) == 2 * (len(pairs) if task == "associative_recall" else 1)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_key_is_as_likely_to_be_drawn_whatever_was_drawn_before(drawn, length):
    is_new = [new for _, _, asked in sides(drawn["associative_recall"][length]) for new in asked[1::2]]
    pairs = PAIRS["associative_recall"](length)
    expected = np.mean((1 - 1 / pairs) ** np.arange(pairs))
    assert np.mean(is_new) == pytest.approx(expected, abs=3 * np.sqrt(expected * (1 - expected) / len(is_new)))


@pytest.mark.parametrize("length", LENGTHS)
def test_a_reader_follows_variables_to_the_value_that_is_given(drawn, length):
    for x, y, asked in sides(drawn["variable_tracking"][length]):
        value = followed(pairs_of(x))
        assert len(x) == length
        assert len(value) == CHAINS * VARIABLES
        assert len(set(value.values())) == CHAINS
        assert set(value) <= set(KEYS)
        assert set(value.values()) <= set(VALUES)
        assert y[1:] == [name for name, own in value.items() if own == y[0]]
        assert asked == [False] + [True] * VARIABLES


@pytest.mark.parametrize("length", LENGTHS)
def test_a_reader_counts_the_most_frequent_words(drawn, length):
    for x, y, asked in sides(drawn["frequent_words"][length]):
        counts = Counter(x)
        assert len(x) == length
        assert set(x) <= set(range(SYMBOLS))
        assert y == sorted(range(SYMBOLS), key=lambda word: (-counts[word], word))[:WORDS]
        assert all(asked)


def test_the_most_frequent_word_is_another_in_every_text(drawn):
    assert len({y[0] for _, y, _ in sides(drawn["frequent_words"][LONGEST])}) > COUNT / 4


def test_a_needle_may_lie_anywhere(drawn):
    places = [next(i for i, token in enumerate(x) if token in KEYS) for x, _, _ in sides(drawn["needle"][16])]
    assert set(places) > {0, 14}
    assert len(set(places)) > 10


def test_chains_stand_side_by_side_and_not_one_after_the_other(drawn):
    texts = [
        [followed(pairs_of(x))[name] for name, _ in pairs_of(x)] for x, _, _ in sides(drawn["variable_tracking"][16])
    ]
    blocks = [len([*itertools.groupby(values)]) for values in texts]
    assert np.mean(blocks) > CHAINS + 1


def test_alphabets_share_no_symbol_and_leave_none_out():
    assert [*itertools.chain(*alphabets(SYMBOLS))] == [*range(SYMBOLS)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("needles", 7, 12), "shortest=7: task='needles' needs 8 or more"),
        (("needles", 8, 11), "symbols=11: task='needles' needs 12 or more"),
        (("variable_tracking", 15, 24), "shortest=15: task='variable_tracking' needs 16 or more"),
        (("variable_tracking", 16, 23), "symbols=23: task='variable_tracking' needs 24 or more"),
        (("associative_recall", 3, 3), "shortest=3: task='associative_recall' needs 4 or more"),
    ],
)
def test_inputs_that_have_no_room_for_what_is_hidden_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        require_task(*arguments)
