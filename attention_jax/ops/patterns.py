"""Patterns: which keys a token attends to, by where both stand in their text, as masks without an array of pairs.

Places count a text's tokens from 0, whatever positions an encoding is given. A pattern reads places, or small numbers
that are made of them, so that `may_allow` finds blocks of queries and keys that are empty.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attention_jax.ops.dropout import joined
from attention_jax.ops.masking import Mask, MaskRule, Rule, combine
from attention_jax.ops.naming import build, whole

ALL = "all"
EMPTY = 1 << 30  # the place of a key that is not there: it stands after every query


class Stream(NamedTuple):
    """The first `sinks` tokens of a text and its last `window`, which are all that is kept of it.

    Token p is entry p, or from p = sinks on entry sinks + (p − sinks) mod window, where it takes an older one's room.
    """

    sinks: int = 4
    window: int = 64

    @property
    def room(self) -> int:
        return self.sinks + self.window

    def places(self, count: Int[Array, " batch"]) -> Int[Array, "batch room"]:
        """The place of what each entry has after `count` tokens, `EMPTY` if it has nothing."""
        last, first, ring = count[:, None] - 1, jnp.arange(self.sinks)[None], jnp.arange(self.window)[None]
        recent = last - (last - self.sinks - ring) % self.window
        has = jnp.concatenate([first <= last, recent >= self.sinks], axis=1)
        first = jnp.broadcast_to(first, (len(count), self.sinks))
        return jnp.where(has, jnp.concatenate([first, recent], axis=1), EMPTY)

    def appended(self, held: Any, new: Any, first: Int[Array, " batch"], count: Int[Array, " batch"]) -> Any:
        """What is kept after `count` of the `new` tokens, which stand from place `first` on: `[batch, …, room, F]`."""
        places = self.places(first + count)
        index = places - first[:, None]
        is_new = (index >= 0) & (places < EMPTY)

        def write(old, new):
            of_entries = (len(first), *(1,) * (old.ndim - 3), self.room, 1)
            taken = jnp.take_along_axis(new, jnp.clip(index, 0, new.shape[-2] - 1).reshape(of_entries), axis=-2)
            return jnp.where(is_new.reshape(of_entries), taken, old)

        return jax.tree.map(write, held, new)


class Pattern(NamedTuple):
    """A pattern as a config names it.

    `mask(queries, keys)`, of places `[..., Q]` and `[..., K]`, is `[..., Q, K]`, or None where all attend to all.
    `stream` is what suffices to be kept of a text, None if all of it is needed.
    """

    mask: Callable[[Array, Array], MaskRule | None]
    stream: Stream | None = None


def local(
    queries: Int[Array, "*batch q"], keys: Int[Array, "*batch k"], window: int, dilation: int = 1, first: int = 0
) -> MaskRule:
    """Attend to `window` keys on a side, `dilation` apart; the `first` tokens see all, and all see them.

    |q − k| ≤ window · dilation with q ≡ k mod dilation, or q < first, or k < first (Beltagy et al. 2020, §3.1).
    """
    of_queries, of_keys = ((places, places % dilation) for places in (queries, keys))
    return _rule(_local, (window * dilation, first), of_queries, of_keys)


def strided(queries: Int[Array, "*batch q"], keys: Int[Array, "*batch k"], stride: int) -> MaskRule:
    """Attend to keys less than `stride` away, and to every key a multiple of it away (Child et al. 2019, §4.3).

    |q − k| < stride, or q ≡ k mod stride: the two parts of the paper in one head.
    """
    of_queries, of_keys = ((places, places % stride) for places in (queries, keys))
    return _rule(_strided, (stride,), of_queries, of_keys)


def big_bird(
    queries: Int[Array, "*batch q"],
    keys: Int[Array, "*batch k"],
    block: int,
    window: int = 1,
    first: int = 1,
    random: int = 1,
    seed: int = 0,
) -> MaskRule:
    """Attend in blocks of `block` tokens: to `window` blocks on a side, the `first` ones, and `random` drawn ones.

    Of blocks b and c: |b − c| ≤ window, or b < first, or c < first, or c is drawn by b, or b by c (Zaheer et al. 2020,
    §2). A block draws among itself and those before it, by a hash, perhaps one twice: what it draws does not depend on
    the text's length.
    """

    def read(places):
        blocks = places // block
        return blocks, *(_drawn(blocks, seed, number) for number in range(random))

    return _rule(_big_bird, (window, first), read(queries), read(keys))


def streaming(queries: Int[Array, "*batch q"], keys: Int[Array, "*batch k"], sinks: int, window: int) -> MaskRule:
    """Attend to the first `sinks` keys and the last `window`, up to the query (Xiao et al. 2023, §3.2).

    k ≤ q, and k < sinks or q − k < window. Unlike there, tokens keep the positions that they have in the text.
    """
    return _rule(_streaming, (sinks, window), (queries,), (keys,))


def narrowed(masks: Sequence[Mask | None], patterns: Sequence[str], length: int) -> list[Mask | None]:
    """Masks of texts of one length, with what patterns of these names forbid too."""
    own = [make_pattern(text).mask(jnp.arange(length), jnp.arange(length)) for text in patterns]
    return [combine(mask, *own) for mask in masks]


def _drawn(blocks: Array, seed: int, number: int) -> Array:
    bits = joined(joined(jnp.uint32(seed), jnp.uint32(number)), blocks.astype(jnp.uint32))
    return (bits % (blocks.astype(jnp.uint32) + 1)).astype(blocks.dtype)


def _rule(allows: Callable, numbers: tuple[int, ...], of_queries: tuple, of_keys: tuple) -> MaskRule:
    """The mask of `allows(query, key, *numbers, *of_queries, *of_keys)`."""
    reads = ("text",) * len(numbers) + ("query",) * len(of_queries) + ("key",) * len(of_keys)
    rule = Rule(allows, (*numbers, *of_queries, *of_keys), reads)
    return MaskRule((rule,), of_queries[0].shape[-1], of_keys[0].shape[-1])


def _local(query, key, reach, first, q, q_phase, k, k_phase):
    return ((abs(q - k) <= reach) & (q_phase == k_phase)) | (q < first) | (k < first)


def _strided(query, key, stride, q, q_phase, k, k_phase):
    return (abs(q - k) < stride) | (q_phase == k_phase)


def _big_bird(query, key, window, first, *blocks):
    half = len(blocks) // 2
    (q, *of_q), (k, *of_k) = blocks[:half], blocks[half:]
    found = (abs(q - k) <= window) | (q < first) | (k < first)
    for q_drawn, k_drawn in zip(of_q, of_k, strict=True):
        found = found | (q_drawn == k) | (k_drawn == q)
    return found


def _streaming(query, key, sinks, window, q, k):
    return (k <= q) & ((k < sinks) | (q - k < window))


def _all() -> Pattern:
    return Pattern(lambda queries, keys: None)


def _local_of(window: int = 8, dilation: int = 1, first: int = 0) -> Pattern:
    window, dilation, first = whole("window", window), whole("dilation", dilation), whole("first", first, 0)
    return Pattern(functools.partial(local, window=window, dilation=dilation, first=first))


def _big_bird_of(block: int = 16, window: int = 1, first: int = 1, random: int = 1, seed: int = 0) -> Pattern:
    more = {"window": window, "first": first, "random": random, "seed": seed}
    sizes: dict[str, Any] = {name: whole(name, value, 0) for name, value in more.items()}
    return Pattern(functools.partial(big_bird, block=whole("block", block), **sizes))


def _strided_of(stride: int = 8) -> Pattern:
    return Pattern(functools.partial(strided, stride=whole("stride", stride)))


def _streaming_of(sinks: int = 4, window: int = 64) -> Pattern:
    stream = Stream(whole("sinks", sinks, 0), whole("window", window))
    return Pattern(functools.partial(streaming, **stream._asdict()), stream)


BUILDERS: dict[str, Callable[..., Pattern]] = {
    ALL: _all,
    "local": _local_of,
    "big_bird": _big_bird_of,
    "strided": _strided_of,
    "streaming": _streaming_of,
}


def make_pattern(text: str, key: str = "pattern") -> Pattern:
    """The pattern that a config's `text` names, of the key `key`. Raises ValueError for an unknown name or option."""
    return build(key, text, BUILDERS)
