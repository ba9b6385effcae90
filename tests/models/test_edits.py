"""Heads removed, weakened and replaced, as arguments of a call: one program for all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translators import INPUTS, LENGTHS, SOURCE, trained

from attention_jax.modules.attention import Edit

LAYERS, HEADS = 2, 4
KINDS = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}  # and whose layers have it


@pytest.fixture(scope="module")
def transformer():
    return trained("transformer_small", layers=LAYERS, encoder_layers=LAYERS, decoder_layers=LAYERS)


def logits(model, edits={}):  # noqa: B006
    module, variables = model
    return jax.jit(lambda edits: module.apply(variables, SOURCE, LENGTHS, INPUTS, edits=edits))(edits)


def seen(model, edits={}):  # noqa: B006
    module, variables = model
    return module.apply(variables, SOURCE, LENGTHS, INPUTS, edits=edits, method="attention")


def without(variables, kind, layer, head):
    """The variables with the rows of W_o that read one head at zero."""
    params = jax.tree.map(lambda a: a, variables["params"])
    part = params[f"{KINDS[kind]}_{layer}"]["cross_attention" if kind == "cross" else "self_attention"]
    size = len(part["out"]) // HEADS
    part["out"] = part["out"].at[head * size : (head + 1) * size].set(0)
    return {**variables, "params": params}


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_gate_is_a_head_that_nobody_reads_and_a_vmap_closes_each_in_one_program(transformer, kind):
    module, variables = transformer
    gates = 1 - jnp.eye(LAYERS * HEADS).reshape(-1, LAYERS, HEADS)
    run = jax.jit(jax.vmap(lambda gate: module.apply(variables, SOURCE, LENGTHS, INPUTS, edits={kind: Edit(gate)})))
    found = run(gates)
    for index, (layer, head) in enumerate(np.ndindex(LAYERS, HEADS)):
        expected = logits((module, without(variables, kind, layer, head)))
        np.testing.assert_allclose(found[index], expected, rtol=1e-4, atol=1e-4)


def test_open_gates_change_nothing_and_half_open_ones_do(transformer):
    whole = logits(transformer)
    gate = jnp.ones((LAYERS, HEADS))
    np.testing.assert_allclose(logits(transformer, {"cross": Edit(gate)}), whole, rtol=1e-5, atol=1e-5)
    assert not np.allclose(logits(transformer, {"cross": Edit(gate.at[0, 1].set(0.5))}), whole, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_head_did_may_be_put_back_and_another_sentences_may_be_put_in(transformer, kind):
    whole, found = logits(transformer), seen(transformer)[kind]
    chosen = jnp.zeros((LAYERS, HEADS), bool).at[1, 2].set(True)
    layers_first = jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), found)
    for edit in (
        Edit(replaced=chosen, weights=layers_first.weights),
        Edit(replaced=chosen, outputs=layers_first.outputs),
    ):
        np.testing.assert_allclose(logits(transformer, {kind: edit}), whole, rtol=1e-4, atol=1e-4)
    other = Edit(replaced=chosen, outputs=jnp.roll(layers_first.outputs, 1, axis=1))
    assert not np.allclose(logits(transformer, {kind: other}), whole, atol=1e-4)
    uniform = Edit(replaced=chosen, weights=jnp.ones_like(layers_first.weights) / 3)
    np.testing.assert_allclose(seen(transformer, {kind: uniform})[kind].weights[:, 0], found.weights[:, 0], atol=1e-6)


@pytest.mark.parametrize("name", ["bahdanau", "luong_local_p"])
def test_a_recurrent_translator_has_one_head_of_one_layer(name):
    model = trained(name)
    whole, found = logits(model), seen(model)["cross"]
    closed, chosen = Edit(jnp.zeros((1, 1))), jnp.ones((1, 1), bool)
    nothing = Edit(replaced=chosen, weights=jnp.zeros_like(jnp.moveaxis(found.weights, 1, 0)))
    np.testing.assert_allclose(
        logits(model, {"cross": closed}), logits(model, {"cross": nothing}), rtol=1e-4, atol=1e-5
    )
    assert not np.allclose(logits(model, {"cross": closed}), whole, atol=1e-3)
    same = Edit(replaced=chosen, outputs=jnp.moveaxis(found.outputs, 1, 0))
    np.testing.assert_allclose(logits(model, {"cross": same}), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bahdanau", "transformer_small"])
def test_a_gate_acts_in_cached_decoding_as_in_teacher_forcing(name):
    module, variables = trained(name, decoder_layers=LAYERS, encoder_layers=LAYERS)
    shape = (LAYERS, HEADS) if "transformer" in name else (1, 1)
    edits = {"cross": Edit(jnp.full(shape, 0.3))}
    taught = logits((module, variables), edits)
    cache = module.apply(variables, module.apply(variables, SOURCE, LENGTHS, method="encode"), 7, method="init_cache")
    for t in range(INPUTS.shape[1]):
        found, cache = module.apply(variables, INPUTS[:, t], cache, edits, method="step")
        np.testing.assert_allclose(found, taught[:, t], rtol=2e-4, atol=2e-4)
