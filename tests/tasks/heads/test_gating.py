"""Heads are removed exactly, many in one program; the gradient's estimate is the slope at gates of 1."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled
from translators import INPUTS, LENGTHS, ONE_LAYER, SOURCE, trained

from attention_jax.ops.losses import cross_entropy
from attention_jax.tasks.heads.gating import (
    by_kind,
    count,
    edits_of,
    estimates,
    first_removed,
    gated_losses,
    one_removed,
)

SIZES = {"encoder": (1, 4), "decoder": (1, 4), "cross": (1, 4)}
PARTS = {  # whose W_o has which kind's heads
    "encoder": ("encoder_0", "self_attention"),
    "decoder": ("decoder_0", "self_attention"),
    "cross": ("decoder_0", "cross_attention"),
}
BATCH = {"source": SOURCE, "lengths": LENGTHS, "inputs": INPUTS, "labels": jnp.roll(INPUTS, -1, axis=1)}
BATCHES = [(np.arange(2), BATCH)]  # the third row is padding


@functools.cache
def model():
    return trained("transformer_book", **ONE_LAYER)


def loss(variables, batch, edits):
    module, _ = model()
    logits = module.apply(variables, batch["source"], batch["lengths"], batch["inputs"], edits=edits)
    return jax.vmap(cross_entropy)(logits, batch["labels"], batch["labels"] != 0)


@functools.cache
def gated():
    return gated_losses(loss, SIZES)


def test_a_removed_head_is_one_whose_rows_of_the_output_matrix_are_zeros():
    module, variables = model()
    found = gated()(variables, BATCHES, one_removed(12))
    settings = [None, *((kind, head) for kind in SIZES for head in range(4))]
    assert found.nats.shape == (13, 2)
    for setting, nats in zip(settings, found.nats, strict=True):
        changed = jax.tree.map(jnp.array, variables)
        if setting is not None:
            layer, part = PARTS[setting[0]]
            rows = slice(2 * setting[1], 2 * setting[1] + 2)
            matrix = changed["params"][layer][part]["out"]
            changed["params"][layer][part]["out"] = matrix.at[rows].set(0)
        logits = compiled(module)(changed, SOURCE, LENGTHS, INPUTS)
        expected = jax.vmap(cross_entropy)(logits, BATCH["labels"], BATCH["labels"] != 0).total
        np.testing.assert_allclose(nats, expected[:2], rtol=1e-5)


def test_the_estimate_is_the_mean_size_of_a_sentences_slope_at_gates_of_one():
    _, variables = model()
    small = 1e-2
    above, below = (1 + sign * small * np.eye(12, dtype=np.float32) for sign in (1, -1))
    found = gated()(variables, BATCHES, np.concatenate([np.ones((1, 12), np.float32), above, below])[:25])
    slopes = (found.nats[1:13] - found.nats[13:]) / (2 * small)
    estimate = estimates(loss, SIZES)(variables, BATCHES)
    np.testing.assert_allclose(estimate, np.abs(slopes).sum(-1) / found.tokens.sum(), rtol=0.02, atol=1e-4)


def test_heads_go_one_after_the_other_in_their_order():
    gates = first_removed(np.array([2, 0]), 3)
    np.testing.assert_array_equal(gates, [[1, 1, 1], [1, 1, 0], [0, 1, 0]])
    assert not first_removed(np.random.default_rng(0).permutation(5), 5)[-1].any()


@pytest.mark.parametrize("backend", [np, jnp])
def test_a_row_of_heads_is_cut_kind_by_kind_and_layer_by_layer(backend):
    sizes = {"encoder": (2, 1), "cross": (1, 3)}
    found = by_kind(backend.arange(5), sizes)
    np.testing.assert_array_equal(found["encoder"], [[0], [1]])
    np.testing.assert_array_equal(found["cross"], [[2, 3, 4]])
    assert count(sizes) == 5
    assert edits_of(backend.arange(5), sizes)["encoder"].gate.shape == (2, 1)
