"""Algorithmic tasks: an input of a given length, and the output that a rule makes of it, drawn from a random key.

All tasks have one vocabulary and one shape: `x₁ … xₙ SEP y₁ … yₘ END PAD …`, of 2 · longest + 2 tokens for inputs of up
to `longest`. Lengths may be traced, so that one program draws every task at every length.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from attention_jax.data.drawn import END, FIRST, PAD, PLUS, SEP, Drawn, given_with_queries
from attention_jax.data.recall import (
    CHAINS,
    NEEDLES,
    VARIABLES,
    WORDS,
    frequent_words,
    looked_up,
    variable_tracking,
)

DIGITS = 10


class Example(NamedTuple):
    """A text, and which of its tokens are to be predicted: the output's without those that are given, and its end."""

    tokens: Int[Array, "*batch t"]
    is_output: Bool[Array, "*batch t"]


class Task(NamedTuple):
    """`draw(key, length, longest, symbols) → Drawn`; the shortest input and the fewest symbols that it can have."""

    draw: Callable[[Key[Array, ""], Int[Array, ""], int, int], Drawn]
    shortest: int = 1
    symbols: int = 2


def size(longest: int) -> int:
    """How many tokens a text has, padding included, for inputs of up to `longest` tokens."""
    return 2 * longest + 2


def example(task: str | Int[Array, ""], key: Key[Array, ""], length: Int[Array, ""], longest: int, symbols: int):
    """The text that a key draws; `task` is a name of `TASKS`, or its index there, which may be traced.

    Raises ValueError for another name.
    """
    if isinstance(task, str):
        require_known(task)
        return _laid_out(TASKS[task].draw(key, length, longest, symbols), longest)
    branches = [
        lambda key, length, draw=one.draw: _laid_out(draw(key, length, longest, symbols), longest)
        for one in TASKS.values()
    ]
    return jax.lax.switch(task, branches, key, length)


def require_known(name: str) -> None:
    """Raise ValueError for a name that is not in `TASKS`."""
    if name not in TASKS:
        raise ValueError(f"task={name!r}: choose one of {', '.join(TASKS)}.")


def require_task(name: str, shortest: int, symbols: int) -> None:
    """Raise ValueError for an unknown task, and for inputs that are too short or symbols that are too few for it."""
    require_known(name)
    task = TASKS[name]
    for key, given, least in (("shortest", shortest, task.shortest), ("symbols", symbols, task.symbols)):
        if given < least:
            raise ValueError(f"{key}={given}: task={name!r} needs {least} or more.")


def _laid_out(drawn: Drawn, longest: int) -> Example:
    indices = jnp.arange(size(longest))
    of_x, of_y = (jnp.clip(at, 0, longest - 1) for at in (indices, indices - drawn.inputs - 1))
    x, y = drawn.x.astype(jnp.int32)[of_x], drawn.y.astype(jnp.int32)[of_y]
    end = drawn.inputs + 1 + drawn.outputs
    is_output = (indices > drawn.inputs) & (indices < end)
    if drawn.given is not None:
        is_output &= ~drawn.given[of_y]
    if drawn.has_end:
        is_output |= indices == end
    tokens = jnp.select(
        [indices < drawn.inputs, indices == drawn.inputs, indices < end, indices == end], [x, SEP, y, END], PAD
    )
    return Example(tokens.astype(jnp.int32), is_output)


def _symbols(key: Array, longest: int, symbols: int) -> Array:
    return FIRST + jax.random.randint(key, (longest,), 0, symbols)


def _mapped(rule: Callable[[Array, Array], Array]) -> Callable[..., Drawn]:
    """A task with outputs as long as their inputs: `rule(x, length) → y`."""

    def draw(key, length, longest, symbols):
        x = _symbols(key, longest, symbols)
        return Drawn(x, length, rule(x, length), length)

    return draw


def _reverse(x: Array, length: Array) -> Array:
    return x[jnp.maximum(length - 1 - jnp.arange(len(x)), 0)]


def _sort(x: Array, length: Array) -> Array:
    return jnp.sort(jnp.where(jnp.arange(len(x)) < length, x, jnp.iinfo(x.dtype).max))


def _folded(modulus: int) -> Callable[..., Drawn]:
    """The task of summing inputs, which are less than `modulus`, modulo `modulus`: parity if it is 2.

    There is always one token, so that its end is not counted: it would be right whatever is known of the sum.
    """

    def draw(key, length, longest, symbols):
        del symbols
        x = _symbols(key, longest, modulus)
        total = jnp.sum(jnp.where(jnp.arange(longest) < length, x - FIRST, 0)) % modulus
        return Drawn(x, length, jnp.full(longest, FIRST + total), jnp.int32(1), has_end=False)

    return draw


def _last_occurrence(key: Array, length: Array, longest: int, symbols: int) -> Drawn:
    """Half as many look-ups as inputs: each gives a symbol, and asks which token followed its last occurrence.

    Where a symbol was looked up before, the answer is given.
    """
    key_x, key_asked = jax.random.split(key)
    x, indices = _symbols(key_x, longest, symbols), jnp.arange(longest)
    asked = x[jax.random.randint(key_asked, (longest,), 0, length - 1)]
    is_seen = (indices < length - 1)[None] & (x[None] == asked[:, None])
    found = x[jnp.max(jnp.where(is_seen, indices[None], 0), axis=1) + 1]
    y = jnp.stack([asked, found], axis=1).reshape(-1)[:longest]
    return Drawn(x, length, y, length // 2 * 2, given_with_queries(asked)[:longest])


def _addition(is_reversed: bool) -> Callable[..., Drawn]:
    """The task a + b of two numbers of d digits, with a sum of d + 1; if `is_reversed` the lowest digit comes first."""

    def draw(key, length, longest, symbols):
        del symbols
        digits, indices = (length - 1) // 2, jnp.arange(longest)
        a, b = jnp.where(indices < digits, jax.random.randint(key, (2, longest), 0, DIGITS), 0)  # the lowest first

        def add(carry, pair):
            total = carry + pair[0] + pair[1]
            return total // DIGITS, total % DIGITS

        total = jax.lax.scan(add, jnp.int32(0), (a, b))[1]
        ordered = (lambda number, count: number) if is_reversed else _reverse
        x = jnp.where(
            indices < digits,
            FIRST + ordered(a, digits),
            jnp.where(indices == digits, PLUS, FIRST + ordered(b, digits)[jnp.maximum(indices - digits - 1, 0)]),
        )
        return Drawn(x, 2 * digits + 1, FIRST + ordered(total, digits + 1), digits + 1)

    return draw


def _dyck(key: Array, length: Array, longest: int, symbols: int) -> Drawn:
    """Nested brackets of two kinds; the output closes the brackets that the input leaves open.

    Symbols 0 and 1 open, 2 and 3 close.
    """
    del symbols
    is_open, kinds = jax.random.bernoulli(key, 0.5, (2, longest))

    def advance(carry, drawn):
        stack, depth = carry
        index, opens, kind = drawn
        opens = opens | (depth == 0)
        top = stack[jnp.maximum(depth - 1, 0)]
        is_input = index < length
        pushed = stack.at[depth].set(jnp.where(opens, kind, stack[depth]))
        bracket = jnp.where(opens, kind, 2 + top)
        return (
            jnp.where(is_input, pushed, stack),
            jnp.where(is_input, depth + jnp.where(opens, 1, -1), depth),
        ), FIRST + bracket

    start = (jnp.zeros(longest + 1, jnp.int32), jnp.int32(0))
    drawn = (jnp.arange(longest), is_open, kinds.astype(jnp.int32))
    (stack, depth), x = jax.lax.scan(advance, start, drawn)
    return Drawn(x, length, _reverse(FIRST + 2 + stack[:-1], depth), depth)


TASKS: dict[str, Task] = {
    "copy": Task(_mapped(lambda x, length: x)),
    "reverse": Task(_mapped(_reverse)),
    "sort": Task(_mapped(_sort)),
    "addition": Task(_addition(is_reversed=False), shortest=3, symbols=DIGITS),
    "addition_reversed": Task(_addition(is_reversed=True), shortest=3, symbols=DIGITS),
    "parity": Task(_folded(2)),
    "modular_sum": Task(_folded(DIGITS), symbols=DIGITS),
    "last_occurrence": Task(_last_occurrence, shortest=2),
    "dyck": Task(_dyck, symbols=4),
    "needle": Task(looked_up(1), shortest=2, symbols=3),
    "needles": Task(looked_up(NEEDLES), shortest=2 * NEEDLES, symbols=3 * NEEDLES),
    "associative_recall": Task(looked_up(), shortest=4, symbols=3),
    "variable_tracking": Task(variable_tracking, shortest=2 * CHAINS * VARIABLES, symbols=3 * CHAINS * VARIABLES),
    "frequent_words": Task(frequent_words, shortest=WORDS, symbols=WORDS),
}
