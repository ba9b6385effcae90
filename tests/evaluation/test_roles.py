"""What heads look at, against loops over tokens."""

import numpy as np
import pytest

from attention_jax.evaluation.roles import chance_of_rarest, positional_share, rarest_share


def looking_at(*keys, width):
    return np.eye(width)[list(keys)]


def test_a_head_that_looks_at_the_word_before_is_positional_though_the_first_has_none():
    assert positional_share([looking_at(3, 0, 1, 2, width=4)], is_causal=False) == (1.0, -1)
    assert positional_share([looking_at(0, 0, 1, 2, width=4)], is_causal=True) == (1.0, -1)


def test_an_offset_that_few_tokens_can_see_makes_no_head_positional():
    share, offset = positional_share([looking_at(3, 0, 0, 0, width=4)], is_causal=False)
    assert offset != 3
    assert share < 1


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_share_at_an_offset_is_that_of_a_loop(is_causal, random):
    maps = [random.random((n, n)) for n in (2, 5, 7)]
    maps = [np.tril(weights) if is_causal else weights for weights in maps]
    shares = {}
    for offset in range(-7, 8):
        hits, room, total = 0, 0, 0
        for weights in maps:
            for query in range(len(weights)):
                keys = range(query + 1) if is_causal else range(len(weights))
                if len(keys) < 2:
                    continue
                total += 1
                room += query + offset in keys
                hits += max(keys, key=lambda key, row=weights[query]: row[key]) == query + offset
        if room and room >= total / 2:
            shares[offset] = hits / room
    share, offset = positional_share(maps, is_causal)
    assert share == pytest.approx(max(shares.values()))
    assert shares[offset] == pytest.approx(share)


def test_the_rarest_token_is_the_one_least_often_in_training():
    counts = [np.array([9, 2, 5]), np.array([4, 4])]
    maps = [looking_at(1, 1, 2, width=3), looking_at(0, 1, width=2)]
    assert rarest_share(maps, counts) == pytest.approx(4 / 5)
    assert chance_of_rarest(counts) == pytest.approx((3 * (1 / 3) + 2) / 5)
