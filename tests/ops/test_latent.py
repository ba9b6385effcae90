"""Latent attention: keys and values of every head, or latents alone, say the same."""

import math

import jax
import numpy as np
import pytest

from attention_jax.ops.latent import Latents, absorbed, expanded, of_heads
from attention_jax.ops.masking import causal_mask
from attention_jax.ops.pooling import attend

HEADS, RANK, FEATURES, ROTARY, LENGTH = 3, 5, 4, 2, 6


def given(*batch):
    random = np.random.default_rng(0)
    sizes = {"query": (HEADS, LENGTH, FEATURES), "turned": (HEADS, LENGTH, ROTARY)}
    sizes |= {"latent": (LENGTH, RANK), "key_turned": (LENGTH, ROTARY)}
    query, turned, *memory = (random.normal(size=(*batch, *size)).astype(np.float32) for size in sizes.values())
    matrices = random.normal(size=(2, RANK, HEADS, FEATURES)).astype(np.float32)
    return query, turned, Latents(*memory), *matrices


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_reading_latents_alone_is_reading_every_heads_keys_and_values(batch):
    query, turned, memory, w_key, w_value = given(*batch)
    mask = causal_mask(LENGTH, LENGTH)
    whole = attend(*expanded(query, turned, memory, w_key, w_value), mask=mask)
    latents = attend(*absorbed(query, turned, memory, w_key), mask=mask)
    np.testing.assert_allclose(of_heads(latents, w_value), whole, rtol=2e-4, atol=2e-5)


def test_every_head_reads_what_the_formula_says_pair_by_pair():
    query, turned, memory, w_key, w_value = jax.tree.map(np.float64, given())
    found = attend(*expanded(*given()))
    for head in range(HEADS):
        keys, values = memory.latent @ w_key[:, head], memory.latent @ w_value[:, head]
        for i in range(LENGTH):
            scores = [query[head, i] @ keys[j] + turned[head, i] @ memory.turned[j] for j in range(LENGTH)]
            weights = np.exp(np.array(scores) / math.sqrt(FEATURES + ROTARY))
            np.testing.assert_allclose(found[head, i], weights @ values / weights.sum(), rtol=2e-4, atol=2e-5)
