"""Greedy decoding over a toy model whose best continuation is known."""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.decoding.greedy import Writing, greedy, likeliest, write

BOS, EOS, PAD = 1, 2, 0
CHAINS = jnp.array([[BOS, 5, 6, 7, EOS], [BOS, EOS, 0, 0, 0], [BOS, 8, 8, 8, 8]])


def step(tokens, cache):
    """The next word of each row's chain; a chain without end repeats its last word."""
    row, position = cache
    following = CHAINS[row, jnp.minimum(position + 1, 4)]
    return jax.nn.one_hot(following, 10), (row, position + 1)


def decode(max_length, rows=(0, 1, 2)):
    cache = (jnp.array(rows), jnp.zeros(len(rows), jnp.int32))
    return jax.jit(lambda c: greedy(step, c, jnp.zeros(len(rows), bool), max_length, bos=BOS, eos=EOS, pad=PAD))(cache)


def test_each_sentence_ends_on_its_own_and_is_padded_after_its_end():
    np.testing.assert_array_equal(decode(6), [[5, 6, 7, EOS, 0, 0], [EOS, 0, 0, 0, 0, 0], [8, 8, 8, 8, 8, 8]])


def test_a_sentence_does_not_depend_on_its_batch():
    np.testing.assert_array_equal(decode(6, rows=(0,))[0], decode(6)[0])


def test_the_loop_stops_when_all_have_ended():
    calls = []

    def counted(tokens, cache):
        jax.debug.callback(lambda: calls.append(1))
        return step(tokens, cache)

    cache = (jnp.array([0, 2]), jnp.zeros(2, jnp.int32))  # the second row's chain has no end, and is no sentence
    greedy(counted, cache, jnp.array([False, True]), 100, bos=BOS, eos=EOS, pad=PAD).block_until_ready()
    jax.effects_barrier()
    assert len(calls) == 4


def test_what_is_written_in_parts_is_what_is_written_at_once():
    cache = (jnp.arange(3), jnp.zeros(3, jnp.int32))
    writing = Writing(jnp.full(3, BOS), cache, jnp.zeros(3, bool), jnp.zeros((), jnp.int32))
    more = jax.jit(lambda start, most: write(step, start, 4, likeliest, eos=EOS, pad=PAD, never=(PAD,), at_most=most))
    parts = []
    for count in (1, 3, 2):
        words, writing = more(writing, count)
        assert not words[:, count:].any()
        parts.append(words[:, :count])
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), decode(6))
    assert writing.position == 6
