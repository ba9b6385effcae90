"""What a task of `data/algorithmic.py` draws: the vocabulary that all of them have, and an input with its output."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

PAD, SEP, END, PLUS = range(4)
FIRST = 4  # the id of symbol 0


class Drawn(NamedTuple):
    """Input `x` and output `y`, and how many tokens of each count.

    Output tokens that are `given` are not predicted, nor is the output's end without `has_end`.
    """

    x: Int[Array, " longest"]
    inputs: Int[Array, ""]
    y: Int[Array, " longest"]
    outputs: Int[Array, ""]
    given: Bool[Array, " longest"] | None = None
    has_end: bool = True


def given_with_queries(asked: Int[Array, " Q"]) -> Bool[Array, " 2*Q"]:
    """Which of query, answer, query, answer, … are given: every query, and the answer to one that was asked before."""
    is_same = asked[:, None] == asked[None]
    was_asked = jnp.any(is_same & jnp.tri(len(asked), k=-1, dtype=bool), axis=1)
    return jnp.stack([jnp.ones_like(was_asked), was_asked], axis=1).reshape(-1)
