"""Patterns against their definitions, pair by pair, and backends that skip the blocks that patterns empty."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import backends
from attention_jax.ops.masking import causal_mask, combine, materialize
from attention_jax.ops.patterns import EMPTY, Stream, make_pattern, narrowed

LENGTH = 24


def draws(block, random, seed):
    """What a block draws, by the hash of indices that dropout has too."""
    bits = [hashed_of(seed, number, block) for number in range(random)]
    return {int(bit) % (block + 1) for bit in bits}


def hashed_of(seed, number, block):
    def mixed(bits):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            bits = ((bits ^ (bits >> shift)) * factor) % 2**32
        return bits ^ (bits >> 16)

    bits = seed
    for index in (number, block):
        bits = mixed(bits ^ ((index + 1) * 0x9E3779B1) % 2**32)
    return bits


def big_bird(q, k):
    b, c = q // 3, k // 3
    return abs(b - c) <= 1 or b < 1 or c < 1 or c in draws(b, 2, 7) or b in draws(c, 2, 7)


CASES = {
    "local:window=2": lambda q, k: k in range(q - 2, q + 3),
    "local:window=2,dilation=3": lambda q, k: k in (q - 6, q - 3, q, q + 3, q + 6),
    "local:window=1,first=2": lambda q, k: abs(q - k) <= 1 or min(q, k) < 2,
    "strided:stride=4": lambda q, k: abs(q - k) < 4 or (q - k) % 4 == 0,
    "big_bird:block=3,window=1,first=1,random=2,seed=7": big_bird,
    "streaming:sinks=2,window=5": lambda q, k: k <= q and (k < 2 or k > q - 5),
}


def mask_of(text, length=LENGTH):
    return make_pattern(text).mask(jnp.arange(length), jnp.arange(length))


@functools.cache
def definition(text):
    return np.array([[CASES[text](q, k) for k in range(LENGTH)] for q in range(LENGTH)])


@pytest.mark.parametrize("text", CASES)
def test_a_pattern_is_its_definition(text):
    np.testing.assert_array_equal(materialize(mask_of(text)), definition(text))


@pytest.mark.parametrize("text", CASES)
def test_a_pattern_goes_by_places_wherever_queries_and_keys_stand(text):
    queries, keys = jnp.array([[3, 20], [7, 8]]), jnp.array([[23, 0, 4, 4], [1, 9, 2, 15]])
    found = materialize(make_pattern(text).mask(queries, keys))
    np.testing.assert_array_equal(found, definition(text)[queries[:, :, None], keys[:, None, :]])


EXACT = ("local:window=2", "big_bird:block=3,window=1,first=1,random=2,seed=7", "streaming:sinks=2,window=5")


@pytest.mark.parametrize("text", CASES)
def test_no_block_is_called_empty_in_which_a_query_may_attend(text):
    mask, may_allow = mask_of(text), jax.jit(lambda mask, q, k: mask.may_allow(q, k))
    for rows, columns in itertools.product(np.arange(LENGTH).reshape(-1, 3), repeat=2):
        found, right = may_allow(mask, rows, columns), definition(text)[rows][:, columns].any()
        assert found == right if text in EXACT else found >= right


def test_global_tokens_and_drawn_blocks_are_symmetric_and_no_draw_depends_on_the_length():
    for text in ("local:window=1,first=2", "big_bird:block=3,window=0,first=0,random=1"):
        array = materialize(mask_of(text))
        np.testing.assert_array_equal(array, array.T)
        np.testing.assert_array_equal(array[:12, :12], materialize(mask_of(text, 12)))
    drawn = [materialize(mask_of(f"big_bird:block=2,window=0,first=0,seed={seed}")) for seed in range(2)]
    assert (drawn[0] != drawn[1]).any()


@pytest.mark.parametrize("text", CASES)
def test_backends_that_go_by_blocks_give_what_the_reference_does(text):
    query, key, value = jax.random.normal(jax.random.key(0), (3, 2, LENGTH, 4))
    mask = combine(causal_mask(LENGTH, LENGTH), mask_of(text))

    @functools.partial(jax.jit, static_argnums=0)
    def attended(name, *arrays):
        attend = lambda *arrays: backends.attend(name, *arrays, mask=mask)[0]  # noqa: E731
        return attend(*arrays), jax.grad(lambda *arrays: jnp.sum(attend(*arrays) ** 2), (0, 1, 2))(*arrays)

    expected = attended("reference", query, key, value)
    for name in ("chunked:queries=8,keys=8", "flex:queries=16,keys=16"):
        jax.tree.map(
            lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5),
            attended(name, query, key, value),
            expected,
        )


@pytest.mark.parametrize(("sinks", "window"), [(2, 3), (0, 4), (3, 1)])
def test_a_stream_keeps_the_first_tokens_and_the_last_in_whatever_parts_it_is_read(sinks, window):
    stream, rng = Stream(sinks, window), np.random.default_rng(0)
    held, count = jnp.full((2, 1, stream.room, 1), -1.0), np.zeros(2, int)
    for _ in range(8):
        own, first = rng.integers(0, 6, size=2), jnp.array(count)
        new = jnp.asarray(count[:, None] + np.arange(6), jnp.float32)[:, None, :, None]
        held, count = stream.appended(held, new, first, jnp.array(own)), count + own
        for text in range(2):
            kept = {p for p in range(count[text]) if p < sinks or p >= max(sinks, count[text] - window)}
            places = stream.places(jnp.array(count))[text]
            assert set(places.tolist()) - {EMPTY} == kept
            has = places < EMPTY
            np.testing.assert_array_equal(held[text, 0, :, 0][has], places[has])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ring", "pattern='ring': choose one of all, local, big_bird, strided, streaming"),
        ("local:window=0", "pattern='local:window=0': window=0: needs a whole number, 1 or more"),
        ("strided:step=2", "pattern='strided:step=2': has no option 'step'"),
        ("streaming:sinks=-1", "pattern='streaming:sinks=-1': sinks=-1: needs a whole number, 0 or more"),
    ],
)
def test_a_pattern_that_is_none_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        make_pattern(text)


def test_masks_are_narrowed_by_patterns_and_all_forbids_nothing():
    (mask,) = narrowed([None], ["all"], LENGTH)
    assert mask is None
    (mask,) = narrowed([causal_mask(LENGTH, LENGTH)], ["all", "local:window=2"], LENGTH)
    np.testing.assert_array_equal(materialize(mask), np.tril(definition("local:window=2")))
