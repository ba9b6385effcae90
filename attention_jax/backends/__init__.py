"""Ways to compute the same attention, what each of them can do, and `attend`, the one function that modules call.

`reference` holds the weights of all queries and keys; `chunked` goes through blocks of them, in linear memory, and so
do `ring` and `gathered`, over the devices that have a text's tokens; `flex` makes kernels out of the same records; the
others are kernels that JAX and its libraries ship. What a backend cannot do it refuses by name; it is never replaced by
another in silence. A text may name several, as "cudnn/splash/chunked": the first that can do what is asked is chosen,
once, when a model is built.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.backends import chunked, context, cudnn, flex, fused, pallas, tokamax
from attention_jax.backends.record import Backend, Call
from attention_jax.errors import UserError
from attention_jax.ops import naming, pooling
from attention_jax.ops.attention import Attended, Attention
from attention_jax.ops.dtypes import floating
from attention_jax.ops.pooling import attention_of

AUTO = "auto"
OR = "/"  # between backends, the first of which that can is chosen
LONG = 2048  # keys; from here on blocks take less memory than all weights, and no more time


def _of_kernel(kernel: fused.Kernel) -> Backend:
    return Backend(
        functools.partial(fused.pooled, kernel),
        functools.partial(fused.refusal, kernel),
        mark=kernel.mark if kernel.platform else (),
        reads_caches=False,
        is_fused=True,
    )


def _of_blocks(make: Callable[..., fused.Kernel]) -> Callable[..., Backend]:
    """Builds a kernel from its options: blocks of so many queries and keys at most, and whether it is interpreted."""

    def build(queries=512, keys=512, interpret=False):
        blocks = fused.lanes("queries", queries), fused.lanes("keys", keys)
        return _of_kernel(make(*blocks, naming.truth("interpret", interpret)))

    return build


def _sizes(queries, keys) -> tuple:
    """How many queries and keys a block has; None stays. Raises ValueError for what is no number of them."""
    named = {"queries": queries, "keys": keys}
    return tuple(None if size is None else naming.whole(name, size) for name, size in named.items())


BUILDERS: dict[str, Callable[..., Backend]] = {
    "reference": lambda: Backend(pooling.pooled),
    "chunked": lambda queries=512, keys=512: Backend(
        functools.partial(chunked.pooled, blocks=_sizes(queries, keys)), chunked.refusal
    ),
    "ring": lambda queries=512, keys=512: Backend(
        functools.partial(context.pooled, context.ring, blocks=_sizes(queries, keys)), chunked.refusal
    ),
    "gathered": lambda queries=512, keys=512: Backend(
        functools.partial(context.pooled, context.gathered, blocks=_sizes(queries, keys)), chunked.refusal
    ),
    "flex": lambda queries=None, keys=None: Backend(
        functools.partial(flex.pooled, blocks=_sizes(queries, keys)), flex.refusal, mark=flex.MARK, is_fused=True
    ),
    "cudnn": lambda: _of_kernel(cudnn.CUDNN),
    "triton": lambda interpret=False: _of_kernel(pallas.triton(naming.truth("interpret", interpret))),
    "flash": _of_blocks(pallas.flash),
    "splash": _of_blocks(pallas.splash),
    "tokamax": lambda implementation="triton": _of_kernel(tokamax.tokamax(implementation)),
}


@functools.cache
def make_backend(text: str) -> Backend:
    """The backend that a text names: "reference", "chunked", "chunked:queries=256,keys=1024", "cudnn".

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
    return attended(name, query, key, value, attention_of(**asked))


def attended(
    name: str,
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    attention: Attention,
) -> Attended:
    """The attention that the record asks for, by the backend `name` or "auto".

    Values that are whole numbers are weighed in the dtype of queries and keys. Raises ValueError for what the backend
    cannot do.
    """
    value = floating(value, jnp.result_type(query, key))
    chosen = choose(name, [attention], Call.of(query, key, value))
    return make_backend(chosen).attend(query, key, value, attention)


def require(name: str, attention: Attention) -> None:
    """Raise ValueError if no backend that is named can do what is asked; "auto" always can, for `reference` can."""
    choose(name, [attention], None)


def choose(
    name: str, asked: Sequence[Attention], call: Call | None, tell: Callable[[str], None] = lambda line: None
) -> str:
    """The backend's name, of several that are named the first that can do all that is asked in such a call.

    "auto" is `chunked` if there are many keys and it can, else `reference`. `tell` is told why others before the chosen
    one are not. Raises ValueError if none can.
    """
    refusals = {text: "" if text == AUTO else _refusal(text, asked, call) for text in name.split(OR)}
    chosen = next((text for text, refusal in refusals.items() if not refusal), None)
    if chosen is None:
        reasons = "; ".join(
            f"{text}: {refusal}" if len(refusals) > 1 else refusal for text, refusal in refusals.items()
        )
        raise ValueError(f"backend={name!r}: {reasons}. Choose backend='reference'.")
    for text in itertools.takewhile(lambda text: text != chosen, refusals):
        tell(f"backend {chosen}, not {text}: {refusals[text]}")
    return _automatic(asked, call) if chosen == AUTO else chosen


def _refusal(name: str, asked: Sequence[Attention], call: Call | None) -> str:
    """The first reason why a backend cannot do something that is asked."""
    return next(filter(None, (make_backend(name).refusal(attention, call) for attention in asked)), "")


def _automatic(asked: Sequence[Attention], call: Call | None) -> str:
    is_long = call is not None and (call.keys or 0) >= LONG
    return "chunked" if is_long and not any(map(chunked.refusal, asked)) else "reference"


def of_caches(name: str) -> str:
    """The backend that reads a cache token by token where `name` reads whole texts: itself, or "auto" for kernels."""
    return name if all(text == AUTO or make_backend(text).reads_caches for text in name.split(OR)) else AUTO


def require_mark(name: str, program: Any) -> None:
    """Raise UserError if a compiled program has no trace of the backend that computes its attention."""
    mark = make_backend(name).mark
    if mark and not any(all(part in line for part in mark) for line in program.as_text().splitlines()):
        raise UserError(
            f"backend={name!r}: the compiled program has no call of it ({' of '.join(mark)}), so that something else "
            "would compute attention, or nothing attends. Choose backend='reference'."
        )
