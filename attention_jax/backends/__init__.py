"""Ways to compute the same attention, what each of them can do, and `attend`, the one function that modules call.

`reference` holds the weights of all queries and keys; `chunked` goes through blocks of them, in linear memory. What a
backend cannot do it refuses by name; it is never replaced by another in silence.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxtyping import Array, Float

from attention_jax.backends import chunked, flex
from attention_jax.ops import naming, pooling
from attention_jax.ops.attention import Attended, Attention
from attention_jax.ops.pooling import attention_of

AUTO = "auto"
LONG = 2048  # keys; from here on blocks take less memory than all weights, and no more time


class Backend(NamedTuple):
    """A backend's `attend(query, key, value, attention)`, and why it cannot do what is asked ("" if it can)."""

    attend: Callable[[Array, Array, Array, Attention], Attended]
    refusal: Callable[[Attention], str] = lambda attention: ""


BUILDERS: dict[str, Callable[..., Backend]] = {
    "reference": lambda: Backend(pooling.pooled),
    "chunked": lambda queries=512, keys=512: Backend(
        functools.partial(chunked.pooled, blocks=(naming.whole("queries", queries), naming.whole("keys", keys))),
        chunked.refusal,
    ),
    "flex": lambda queries=128, keys=128: Backend(
        functools.partial(flex.pooled, blocks=(naming.whole("queries", queries), naming.whole("keys", keys))),
        flex.refusal,
    ),
}


@functools.cache
def make_backend(text: str) -> Backend:
    """The backend that a text names: "reference", "chunked", "chunked:queries=256,keys=1024".

    Raises ValueError for another name or option.
    """
    return naming.build("backend", text, BUILDERS)


def attend(
    name: str,
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    **asked: Any,
) -> Attended:
    """`ops.pooling.attend`, by the backend `name` or "auto"; `asked` are its keywords, and `with_weights`.

    Raises ValueError for what the backend cannot do.
    """
    attention = attention_of(**asked)
    chosen = choose(name, [attention], key.shape[-2])
    return make_backend(chosen).attend(query, key, value, attention)


def require(name: str, attention: Attention) -> None:
    """Raise ValueError if a backend cannot do what is asked; "auto" always can, because `reference` can."""
    if name == AUTO:
        return
    reason = make_backend(name).refusal(attention)
    if reason:
        raise ValueError(f"backend={name!r}: {reason}. Choose backend='reference'.")


def choose(name: str, asked: Sequence[Attention], length: int) -> str:
    """The backend's name; for "auto", `chunked` if there are many keys, `length`, and it can do all that is asked.

    Raises ValueError if the backend that is named cannot.
    """
    if name == AUTO:
        return "chunked" if length >= LONG and not any(map(chunked.refusal, asked)) else "reference"
    for attention in asked:
        require(name, attention)
    return name
