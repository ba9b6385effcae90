"""Algorithmic tasks against their definitions, in plain Python."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.data.algorithmic import END, FIRST, PAD, PLUS, SEP, TASKS, example, require_task, size

LONGEST, SYMBOLS, COUNT = 11, 12, 40


@functools.partial(jax.jit, static_argnums=0)
def drawn(name, place, length):
    """Texts of a task: the one of that name, or where there is none the one at that place of the table."""
    keys = jax.random.split(jax.random.key(0), COUNT)
    return jax.vmap(lambda key: example(name or place, key, length, LONGEST, SYMBOLS))(keys)


def texts(task, length):
    return drawn("", jnp.int32(list(TASKS).index(task)), jnp.int32(length))


def sides(found, is_given=lambda y, index: False, has_end=True):
    """Inputs and outputs of every text as lists of symbols, taken apart at its separators."""
    for tokens, is_output in zip(*map(np.asarray, found), strict=True):
        separator, end = list(tokens).index(SEP), list(tokens).index(END)
        assert (tokens[end + 1 :] == PAD).all()
        x, y = ([int(token) - FIRST for token in part] for part in (tokens[:separator], tokens[separator + 1 : end]))
        asked = [separator + 1 + index for index in range(len(y)) if not is_given(y, index)] + [end] * has_end
        np.testing.assert_array_equal(np.flatnonzero(is_output), asked)
        yield x, y


def number(digits, is_reversed):
    return int("".join(map(str, digits[::-1] if is_reversed else digits)))


def is_query_or_was_answered(y, index):
    return index % 2 == 0 or y[index - 1] in y[: index - 1 : 2]


def closing(brackets):
    stack = []
    for bracket in brackets:
        if bracket < 2:
            stack.append(bracket)
        else:
            assert stack.pop() == bracket - 2, "closed another kind than was open"
    return [2 + kind for kind in reversed(stack)]


OF_ONE_TOKEN = ("parity", "modular_sum")  # whose output's end is no question
RULES = {
    "copy": lambda x: x,
    "reverse": lambda x: x[::-1],
    "sort": sorted,
    "parity": lambda x: [sum(x) % 2],
    "modular_sum": lambda x: [sum(x) % 10],
    "dyck": closing,
}


@pytest.mark.parametrize("length", [3, 8, LONGEST])
@pytest.mark.parametrize("task", RULES)
def test_the_output_is_what_the_rule_makes_of_the_input(task, length):
    for x, y in sides(texts(task, length), has_end=task not in OF_ONE_TOKEN):
        assert len(x) == length
        assert y == RULES[task](x)


@pytest.mark.parametrize("length", [2, 7, LONGEST])
def test_a_look_up_gives_a_symbol_and_asks_once_what_followed_it_last(length):
    for x, y in sides(texts("last_occurrence", length), is_query_or_was_answered):
        assert len(y) == length // 2 * 2
        for asked, found in zip(y[::2], y[1::2], strict=True):
            assert found == x[max(i for i in range(length - 1) if x[i] == asked) + 1]


@pytest.mark.parametrize("length", [3, 7, LONGEST])
@pytest.mark.parametrize("task", ["addition", "addition_reversed"])
def test_sums_are_right_and_one_digit_longer(task, length):
    is_reversed = task.endswith("reversed")
    for x, y in sides(texts(task, length)):
        plus = x.index(PLUS - FIRST)
        a, b = x[:plus], x[plus + 1 :]
        assert len(x) == length
        assert len(a) == len(b) == len(y) - 1
        assert number(a, is_reversed) + number(b, is_reversed) == number(y, is_reversed)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_the_same_by_name_and_by_place_and_in_one_shape(task):
    named = drawn(task, jnp.int32(0), jnp.int32(6))
    for a, b in zip(named, texts(task, 6), strict=True):
        np.testing.assert_array_equal(a, b)
    assert named.tokens.shape == (COUNT, size(LONGEST))
    assert len(np.unique(named.tokens, axis=0)) > COUNT / 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("copi", 5, 5), "task='copi': choose one of copy, reverse"),
        (("last_occurrence", 1, 5), "shortest=1: task='last_occurrence' needs 2 or more"),
        (("addition", 9, 8), "symbols=8: task='addition' needs 10 or more"),
    ],
)
def test_what_has_no_meaning_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        require_task(*arguments)
