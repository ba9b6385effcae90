"""Tasks of recall over long inputs: what stands somewhere in an input is asked for after it.

But for `frequent_words`, an input is noise in which pairs of neighbouring tokens are hidden, and a third of the symbols
each are keys, values and noise. A pair's place says nothing of it. Of several pairs all keys differ, and all values,
and each key is as likely to stand in the output, whatever stood there before it. A value is asked for where its key
first stands there, and is given from then on. A single pair is told by its value, which is the only one. The end of
these outputs is not predicted, for all of them are as long as the input lets one know.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from attention_jax.data.drawn import FIRST, Drawn, given_with_queries

NEEDLES = 4  # keys of several needles, one of which is asked for
CHAINS, VARIABLES = 2, 4  # of variables that name one another, and how many there are in each
WORDS, EXPONENT = 3, 2.0  # most frequent words that are asked for; the r-th has a chance in proportion to r⁻²


def alphabets(symbols: int) -> tuple[range, range, range]:
    """The symbols that are keys, those that are values, and those that are noise: a third each, noise the rest too."""
    third = symbols // 3
    return range(third), range(third, 2 * third), range(2 * third, symbols)


def looked_up(pairs: int = 0) -> Callable[..., Drawn]:
    """A task of pairs (key, value) in noise: a key is given, and its value is asked for.

    One pair is a needle in a haystack; of several, of different keys, one is asked for (Hsieh et al. 2024, §3, "S-NIAH"
    and "MK-NIAH"). With 0 they fill half of the input, as far as there are keys, and as many times one of them is drawn
    (multi-query associative recall, Arora et al. 2023, §3; there queries come between the pairs, one of each).
    """

    def draw(key: Array, length: Int[Array, ""], longest: int, symbols: int) -> Drawn:
        keys, values, _ = alphabets(symbols)
        most = pairs or max(min(longest // 4, len(keys)), 1)
        count = jnp.minimum(length // 4, most) if pairs == 0 else jnp.int32(pairs)
        of_keys, of_values, of_asked, *of_text = _uniform(key, 5, longest, symbols)
        pairs_Px2 = jnp.stack([_distinct(of_keys, keys, most), _distinct(of_values, values, most)], axis=-1)
        x = _hidden(of_text, length, longest, symbols, pairs_Px2, count)
        asked_P = (of_asked[:most] * count).astype(jnp.int32)
        y = _padded(pairs_Px2[asked_P].reshape(-1), longest)
        given = _padded(given_with_queries(asked_P), longest)
        return Drawn(x, length, y, jnp.int32(2) if pairs else 2 * count, given, has_end=False)

    return draw


def variable_tracking(key: Array, length: Int[Array, ""], longest: int, symbols: int) -> Drawn:
    """Chains of pairs (variable, value), (variable, the one before it), … in noise, side by side, each in its order.

    A value is given, and the variables that have it are asked for, in order (Hsieh et al. 2024, §3, "VT").
    """
    keys, values, _ = alphabets(symbols)
    of_names, of_roots, of_order, *of_text = _uniform(key, 5, longest, symbols)
    names_CxV = _distinct(of_names, keys, CHAINS * VARIABLES).reshape(CHAINS, VARIABLES)
    roots_C = _distinct(of_roots, values, CHAINS)
    sources_CxV = jnp.concatenate([roots_C[:, None], names_CxV[:, :-1]], axis=1)
    chain = jnp.argsort(of_order[: names_CxV.size]) % CHAINS
    hop = jnp.sum((chain[:, None] == chain[None]) & jnp.tri(len(chain), k=-1, dtype=bool), axis=1)
    pairs_Px2 = jnp.stack([names_CxV[chain, hop], sources_CxV[chain, hop]], axis=-1)
    x = _hidden(of_text, length, longest, symbols, pairs_Px2, jnp.int32(len(chain)))
    y = _padded(jnp.concatenate([roots_C[:1], names_CxV[0]]), longest)
    return Drawn(x, length, y, jnp.int32(1 + VARIABLES), jnp.arange(longest) == 0, has_end=False)


def frequent_words(key: Array, length: Int[Array, ""], longest: int, symbols: int) -> Drawn:
    """The most frequent symbols of the input, the most frequent first; of equally frequent ones the lower one.

    Symbols are drawn by Zipf's law; which has which chance is another draw in every text (Hsieh et al. 2024, §3,
    "FWE").
    """
    of_words, of_ranks = _uniform(key, 2, longest, symbols)
    below = jnp.cumsum((1.0 + jnp.arange(symbols)) ** -EXPONENT)
    ranks = jnp.searchsorted(below, of_ranks[:longest] * below[-1])
    words = jnp.argsort(of_words[:symbols])[jnp.minimum(ranks, symbols - 1)]
    counts = jnp.zeros(symbols, jnp.int32).at[words].add(jnp.arange(longest) < length)
    y = _padded(FIRST + jnp.argsort(-counts, stable=True)[:WORDS], longest)
    return Drawn(FIRST + words, length, y, jnp.int32(WORDS), has_end=False)


def _uniform(key: Array, rows: int, longest: int, symbols: int) -> Float[Array, "rows n"]:
    """Random numbers from 0 to 1, as many a row as any draw needs: one call, because each is compiled anew."""
    return jax.random.uniform(key, (rows, max(longest, symbols, CHAINS * VARIABLES)))


def _any(numbers: Float[Array, " n"], of: range) -> Int[Array, " n"]:
    """A token of an alphabet for each random number."""
    return FIRST + of.start + (numbers * len(of)).astype(jnp.int32)


def _distinct(numbers: Float[Array, " n"], of: range, count: int) -> Int[Array, " count"]:
    """So many different tokens of an alphabet. One that has too few, which `require_task` refuses, is exceeded."""
    return FIRST + of.start + jnp.argsort(numbers[: max(len(of), count)])[:count]


def _hidden(
    numbers: list[Array], length: Int[Array, ""], longest: int, symbols: int, pairs_Px2: Array, count: Int[Array, ""]
) -> Int[Array, " longest"]:
    """Noise with the first `count` pairs in it, in their order, at random places.

    A text has as many places as tokens, less one a pair. Each pair takes one of them, so that they do not overlap, and
    every choice of places is as likely.
    """
    of_noise, of_places = (row[:longest] for row in numbers)
    noise = _any(of_noise, alphabets(symbols)[2])
    chosen = _first_shuffled(of_places, length - count)
    is_pair = jnp.zeros(longest, jnp.int32).at[chosen].set((jnp.arange(longest) < count).astype(jnp.int32))
    first = jnp.where(is_pair == 1, jnp.cumsum(1 + is_pair) - 2, longest)  # past the end nothing is written
    pair_Tx2 = pairs_Px2[jnp.maximum(jnp.cumsum(is_pair) - 1, 0)]
    return noise.at[first].set(pair_Tx2[:, 0], mode="drop").at[first + 1].set(pair_Tx2[:, 1], mode="drop")


def _first_shuffled(numbers: Float[Array, " n"], count: Int[Array, ""]) -> Int[Array, " n"]:
    """0, 1, … n − 1, of which the first `count` are shuffled among themselves; the others come after them."""
    return jnp.argsort(jnp.where(jnp.arange(len(numbers)) < count, numbers, 1.0), stable=True)


def _padded(y: Shaped[Array, " n"], longest: int) -> Shaped[Array, " longest"]:
    return jnp.pad(y, (0, max(longest - len(y), 0)))[:longest]
