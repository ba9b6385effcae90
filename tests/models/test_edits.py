"""Heads removed, weakened and replaced, as arguments of a call: one program for all of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled
from translators import INPUTS, LENGTHS, ONE_LAYER, SOURCE, trained

from attention_jax.models.transformer import Transformer
from attention_jax.modules.attention import Edit

LAYERS, HEADS = 2, 4
RECURRENT = ("seq2seq", "bahdanau", "luong_general", "luong_location", "luong_local_m", "luong_local_p")
KINDS = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}  # and whose layers have it


@pytest.fixture(scope="module")
def transformer():
    return trained("transformer_small", layers=LAYERS, encoder_layers=LAYERS, decoder_layers=LAYERS)


def logits(model, edits={}):  # noqa: B006
    module, variables = model
    return compiled(module)(variables, SOURCE, LENGTHS, INPUTS, edits=edits)


def seen(model, edits={}):  # noqa: B006
    module, variables = model
    return compiled(module, "attention")(variables, SOURCE, LENGTHS, INPUTS, edits=edits)


def without(variables, kind, layer, head):
    """The variables with the rows of W_o that read one head at zero."""
    params = jax.tree.map(lambda a: a, variables["params"])
    part = params[f"{KINDS[kind]}_{layer}"]["cross_attention" if kind == "cross" else "self_attention"]
    size = len(part["out"]) // HEADS
    part["out"] = part["out"].at[head * size : (head + 1) * size].set(0)
    return {**variables, "params": params}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[] if k == "cross" else pytest.mark.slow) for k in KINDS])
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


@pytest.mark.slow
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
    model = trained(name, **ONE_LAYER)
    whole, found = logits(model), seen(model)["cross"]
    closed, chosen = Edit(jnp.zeros((1, 1))), jnp.ones((1, 1), bool)
    nothing = Edit(replaced=chosen, weights=jnp.zeros_like(jnp.moveaxis(found.weights, 1, 0)))
    np.testing.assert_allclose(
        logits(model, {"cross": closed}), logits(model, {"cross": nothing}), rtol=1e-4, atol=1e-5
    )
    assert not np.allclose(logits(model, {"cross": closed}), whole, atol=1e-3)
    same = Edit(replaced=chosen, outputs=jnp.moveaxis(found.outputs, 1, 0))
    np.testing.assert_allclose(logits(model, {"cross": same}), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bahdanau", "transformer_small", "transformer, gru encoder, latent"])
def test_weights_are_put_in_whatever_backend_a_model_has(name):
    module, variables = trained(name, **ONE_LAYER)
    if isinstance(module, Transformer):
        blockwise = module.clone(layer=module.layer._replace(backend="chunked"))
    else:
        blockwise = module.clone(backend="chunked")
    found = jnp.moveaxis(seen((module, variables))["cross"].weights, 1, 0)
    edits = {"cross": Edit(replaced=jnp.ones(found.shape[:1] + found.shape[2:3], bool), weights=found[:, ::-1])}
    expected = logits((module, variables), edits)
    np.testing.assert_allclose(logits((blockwise, variables), edits), expected, rtol=1e-4, atol=1e-4)


def gates(module, value):
    """Every head of every kind of attention with gates about a value, each another; ones are ones."""
    kinds = {} if getattr(module, "attends", "") == "never" else {"cross": (1, 1)}
    if isinstance(module, Transformer):
        kinds = dict.fromkeys(KINDS, (module.decoder_layers, HEADS))
    numbers = np.random.default_rng(0)
    return {
        kind: Edit(jnp.asarray(value ** numbers.uniform(0.5, 1.5, shape), jnp.float32)) for kind, shape in kinds.items()
    }


@functools.partial(jax.jit, static_argnames="module")
def stepped(module, variables, edits):
    """Logits of the inputs, read word by word into a cache."""
    memory = module.apply(variables, SOURCE, LENGTHS, None, edits, method="encode")
    cache = module.apply(variables, memory, INPUTS.shape[1], method="init_cache")

    def step(cache, tokens):
        found, cache = module.apply(variables, tokens, cache, edits, method="step")
        return cache, found

    return jnp.swapaxes(jax.lax.scan(step, cache, INPUTS.T)[1], 0, 1)


@pytest.mark.parametrize("name", [*RECURRENT, "transformer_book", "transformer_small", "transformer, grouped"])
def test_gates_act_in_cached_decoding_as_in_teacher_forcing_and_open_ones_change_nothing(name):
    module, variables = trained(name, **({} if name == "transformer_small" else ONE_LAYER))
    whole, weakened, opened = logits((module, variables)), gates(module, 0.3), gates(module, 1.0)
    np.testing.assert_allclose(stepped(module, variables, opened), whole, rtol=2e-4, atol=2e-4)
    taught = logits((module, variables), weakened)
    np.testing.assert_allclose(stepped(module, variables, weakened), taught, rtol=2e-4, atol=2e-4)
    assert not weakened or not np.allclose(taught, whole, atol=1e-3)


@pytest.mark.parametrize("name", ["bahdanau", "luong_general"])
def test_a_recurrent_translator_whose_gate_is_closed_reads_nothing_of_its_context(name):
    module, variables = trained(name, **ONE_LAYER)
    params = jax.tree.map(lambda a: a, variables["params"])
    hidden, context = module.hidden, module.memory_size
    if name == "bahdanau":  # which reads it beside the word, and in its output
        params["decoder_0"]["w_i"] = params["decoder_0"]["w_i"].at[module.embedding :].set(0)
        params["readout"]["kernel"] = params["readout"]["kernel"].at[hidden : hidden + context].set(0)
    else:
        params["w_c"] = params["w_c"].at[:context].set(0)
    closed = {"cross": Edit(jnp.zeros((1, 1)))}
    expected = logits((module, {**variables, "params": params}))
    np.testing.assert_allclose(stepped(module, variables, closed), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("part", ["weights", "outputs"])
@pytest.mark.parametrize("name", ["bahdanau", "transformer_small"])
def test_word_by_word_heads_are_not_replaced(name, part):
    module, variables = trained(name, **ONE_LAYER if name == "transformer_small" else {})
    edit = Edit(replaced=jnp.ones((1, 1), bool), **{part: jnp.ones((1, 3, 1, 1, 5))})
    with pytest.raises(ValueError, match=r"edits\['cross'\]: word by word a head can have a gate alone"):
        jax.eval_shape(lambda edit: stepped(module, variables, {"cross": edit}), edit)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"crossed": Edit(jnp.ones((LAYERS, HEADS)))}, r"edits\['crossed'\]: this model's kinds of attention are "),
        ({"cross": Edit(jnp.ones((3, HEADS)))}, r"edits\['cross'\].gate has shape \(3, 4\): its first axis is [12] "),
    ],
)
@pytest.mark.parametrize("name", ["bahdanau", "transformer_small"])
def test_edits_that_no_head_reads_are_refused(name, edits, message):
    module, variables = trained(name, **({} if name == "bahdanau" else {"encoder_layers": LAYERS}))
    for read in (lambda edits: module.apply(variables, SOURCE, LENGTHS, INPUTS, edits=edits),
                 lambda edits: stepped(module, variables, edits)):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(read, edits)


def test_a_translator_without_attention_has_no_heads_to_edit():
    module, variables = trained("seq2seq")
    with pytest.raises(ValueError, match="this model's kinds of attention are none"):
        jax.eval_shape(
            lambda edits: module.apply(variables, SOURCE, LENGTHS, INPUTS, edits=edits),
            {"cross": Edit(jnp.ones((1, 1)))},
        )
