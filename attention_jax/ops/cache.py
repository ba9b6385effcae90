"""What a decoder carries from word to word."""

from typing import Any, NamedTuple

from jaxtyping import Array, Int


class Cache(NamedTuple):
    """An explicit pytree, batch first in every leaf.

    `memory` is the encoder's, never written to, and shared by the hypotheses of a sentence; `state` is each
    hypothesis's own; `cursor` counts the words that a hypothesis has read.
    """

    memory: Any
    state: Any
    cursor: Int[Array, " batch"]
