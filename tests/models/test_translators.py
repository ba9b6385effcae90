"""What holds of every translator: its cache, its indifference to padding and batch, causality, populations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled
from translators import INPUTS, LENGTHS, NAMES, ONE_LAYER, SOURCE, build, fresh, trained

from attention_jax.models.transformer import Transformer
from attention_jax.ops.dropout import Dropout

DEEP = ("bahdanau", "luong_general", "transformer_small")  # of two layers


def model_of(name):
    return trained(name, **({} if name in DEEP else ONE_LAYER))


@pytest.fixture(params=NAMES, scope="module")
def model(request):
    return model_of(request.param)


def changed(module, **fields):
    """The module with other values of fields that every layer of it has."""
    if isinstance(module, Transformer):
        return module.clone(layer=module.layer._replace(**fields))
    return module.clone(**fields)


def in_bfloat16(module):
    return changed(module, dtype=jnp.bfloat16)


def test_parameters_are_drawn_in_bfloat16_too(model):
    half = changed(model[0], param_dtype=jnp.bfloat16)
    shapes = jax.eval_shape(half.init, jax.random.key(0), SOURCE, LENGTHS, INPUTS)["params"]
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *(
            (name, "chunked:queries=2,keys=2")
            for name in ("bahdanau", "luong_general", "luong_concat", "luong_local_p")
        ),
        *((name, "flex") for name in ("luong_dot", "luong_general", "luong_local_m")),
    ],
)
def test_a_recurrent_translator_says_the_same_by_every_backend_that_can(name, backend):
    module, variables = model_of(name)
    found = compiled(changed(module, backend=backend))(variables, SOURCE, LENGTHS, INPUTS)
    np.testing.assert_allclose(found, logits_of((module, variables)), rtol=2e-4, atol=2e-5)


def normalizer_of(module, kind):
    if not isinstance(module, Transformer):
        return module.normalize
    return (module.layer.of_cross if kind == "cross" else module.layer.of_self).normalize


@functools.cache
def with_attention(module):
    """The logits and all attention, in one program."""
    return jax.jit(lambda *given: (module.apply(*given), module.apply(*given, method="attention")))


@functools.cache
def read(module):
    """A cache of sentences, with room for seven words."""

    def run(variables, *sentences):
        memory = module.apply(variables, *sentences, method="encode")
        return module.apply(variables, memory, 7, method="init_cache")

    return jax.jit(run)


def logits_of(model, source=SOURCE, lengths=LENGTHS, inputs=INPUTS):
    module, variables = model
    return with_attention(module)(variables, source, lengths, inputs)[0]


def empty_cache(model):
    module, variables = model
    return read(module)(variables, SOURCE, LENGTHS)


def agree(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_cached_steps_agree_with_teacher_forcing(model):
    (module, variables), cache = model, empty_cache(model)
    for t in range(INPUTS.shape[1]):
        np.testing.assert_array_equal(cache.cursor, t)
        logits, cache = compiled(module, "step")(variables, INPUTS[:, t], cache)
        agree(logits, logits_of(model)[:, t])


def test_a_step_past_the_caches_room_is_nan_for_the_sentence_that_takes_it_alone(model):
    (module, variables), cache = model, empty_cache(model)._replace(cursor=jnp.array([6, 7, 9]))
    logits = compiled(module, "step")(variables, INPUTS[:, 0], cache)[0]
    has_room = [True, *[not isinstance(module, Transformer)] * 2]  # a recurrent state has room for any length
    np.testing.assert_array_equal(np.isfinite(logits), np.broadcast_to(np.array(has_room)[:, None], logits.shape))


def test_a_sentence_does_not_depend_on_its_padding_or_its_neighbours(model):
    whole = logits_of(model)
    agree(logits_of(model, jnp.where(SOURCE == 0, 9, SOURCE)), whole)
    others = SOURCE.at[jnp.array([0, 2])].set(10), LENGTHS.at[jnp.array([0, 2])].set(4)
    agree(logits_of(model, *others, INPUTS.at[jnp.array([0, 2])].set(10))[1], whole[1])


@pytest.mark.parametrize("name", ["bahdanau", "luong_local_p", "transformer_small", "transformer, states"])
def test_a_sentence_does_not_depend_on_how_many_there_are_or_to_what_length_they_are_padded(name):
    model = model_of(name)
    alone = jnp.pad(SOURCE[1:2, :3], ((0, 0), (0, 4)), constant_values=9)
    agree(logits_of(model, alone, LENGTHS[1:2], INPUTS[1:2])[0], logits_of(model)[1])


def test_the_decoder_cannot_see_the_future(model):
    changed = logits_of(model, inputs=INPUTS.at[:, 2:].set(10))
    agree(changed[:, :2], logits_of(model)[:, :2])
    assert not np.allclose(changed[:, 2:], logits_of(model)[:, 2:], atol=1e-3)


def test_every_kind_of_attention_is_a_distribution_over_words_that_are_there(model):
    module, variables = model
    for kind, (weights, _) in with_attention(module)(variables, SOURCE, LENGTHS, INPUTS)[1].items():
        keys = weights.shape[-1]
        assert weights.shape[0] == len(SOURCE)
        assert weights.shape[-2] == (SOURCE if kind == "encoder" else INPUTS).shape[-1]
        total, name = np.asarray(weights.sum(-1)), normalizer_of(module, kind)
        assert (np.asarray(weights) >= 0).all()
        assert (total <= 1 + 1e-5).all() or name == "sigmoid"
        if getattr(module, "span", "global") == "global" and name not in ("sigmoid", "learned_sink"):
            np.testing.assert_allclose(total, 1, rtol=1e-5)
        if kind == "decoder":
            np.testing.assert_array_equal(np.asarray(weights) * np.triu(np.ones((keys, keys)), 1), 0)
        else:
            beyond = jnp.arange(keys)[None, :] >= LENGTHS[:, None]
            np.testing.assert_array_equal(weights * beyond[:, None, None, None, :], 0)


@pytest.mark.parametrize("name", ["bahdanau", "transformer_book"])
def test_a_population_is_a_vmap_over_keys(name):
    module = build(name, **ONE_LAYER)
    keys = jax.random.split(jax.random.key(0), 3)
    population = jax.jit(jax.vmap(lambda key: module.init(key, SOURCE, LENGTHS, INPUTS)))(keys)
    logits = jax.jit(jax.vmap(lambda variables: module.apply(variables, SOURCE, LENGTHS, INPUTS)))(population)
    agree(logits[1], logits_of((module, fresh(module, keys[1]))))


def test_bfloat16_computes_in_bfloat16_with_float32_parameters_and_hands_on_unrounded_logits(model):
    module, variables = model
    half = compiled(in_bfloat16(module))(variables, SOURCE, LENGTHS, INPUTS)
    assert half.dtype == jnp.float32
    assert (half != half.astype(jnp.bfloat16)).mean() > 0.5
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    full = np.asarray(logits_of(model))
    assert np.abs(np.asarray(half, np.float32) - full).mean() < 0.05 * np.abs(full).max()


@pytest.mark.parametrize("name", ["luong_local_p", "transformer_small"])
def test_dropout_acts_at_each_named_site_and_at_no_other(name):
    silent, variables = trained(name, **ONE_LAYER, dropout_sites=())

    def run(module, rate, seed):
        return compiled(module)(variables, SOURCE, LENGTHS, INPUTS, Dropout(jax.random.key(seed), rate))

    clean = logits_of((silent, variables))
    agree(run(silent, 0.5, 0), clean)
    for site in ("embeddings", "attention"):
        module = build(name, **ONE_LAYER, dropout_sites=(site,))
        agree(run(module, 0.0, 0), clean)
        assert not np.allclose(run(module, 0.5, 0), clean)
        assert not np.allclose(run(module, 0.5, 0), run(module, 0.5, 1))
