"""Positions that are drawn at random: which, and that only a text's own tokens have a part in it."""

import collections
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.positions import Spec, make_encoding

SPEC = Spec(width=12, heads=3, head_size=4, max_length=16, is_causal=True)


def test_randomized_positions_of_a_text_are_any_choice_of_as_many_whatever_stands_beside_it_in_its_row():
    draw = make_encoding("randomized_sinusoidal", longest=8).sample_positions
    begins = jnp.array([0, 0, 2, 2, 2, 5])  # two tokens of padding, a text of three, and one of one
    keys = jax.random.split(jax.random.key(0), 20_000)
    found = np.asarray(jax.jit(jax.vmap(functools.partial(draw, begins=begins, first=2)))(keys))
    text = found[:, 2:5]
    assert (np.diff(text, axis=1) > 0).all()
    assert all(len({*row}) == 6 for row in found[:100].tolist())
    counts = collections.Counter(map(tuple, text.tolist()))
    assert len(counts) == math.comb(8, 3)
    assert max(abs(count / 20_000 * math.comb(8, 3) - 1) for count in counts.values()) < 0.25  # five deviations
    alone = jax.vmap(lambda key: draw(key, jnp.zeros(3, int)))(keys[:50])
    np.testing.assert_array_equal(text[:50], alone)  # padding changes nothing


@pytest.mark.parametrize("name", ["sinusoidal", "alibi", "rotary", "learned"])
def test_randomized_positions_rise_and_stay_below_the_longest(name):
    encoding = make_encoding(f"randomized_{name}", longest=50)
    draw = lambda seed, length: np.asarray(encoding.sample_positions(jax.random.key(seed), jnp.zeros(length, int)))  # noqa: E731
    positions = draw(0, 20)
    assert (np.diff(positions) > 0).all()
    assert positions.min() >= 0
    assert positions.max() < 50
    assert (positions != draw(1, 20)).any()
    np.testing.assert_array_equal(draw(0, 50), np.arange(50))
    with pytest.raises(ValueError, match="longest=50: cannot draw 51 different positions; raise it"):
        draw(0, 51)
    if name == "learned":
        assert len(encoding.init(jax.random.key(0), SPEC)["table"]) == 50
