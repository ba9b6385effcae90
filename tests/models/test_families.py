"""Families of attention in models: cached, packed, padded, stacked, causal, and where they are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled, drawn
from translators import INPUTS, LENGTHS, ONE_LAYER, SOURCE, build, trained

from attention_jax.models.language_model import LanguageModel
from attention_jax.ops.stacking import stack_layers

TOKENS = jnp.array([[4, 5, 6, 7, 8, 3], [9, 2, 5, 5, 1, 3]])
SIZES = {
    "vocabulary": 11, "layers": 1, "width": 16, "heads": 4, "kv_heads": 2, "qk_norm": True, "feed_forward": 16,
    "activation": "gelu", "gated": False, "norm": "layer", "norm_first": True, "max_length": 12, "is_tied": True,
    "mixer": "attention", "reach": 2, "dropout_sites": ("residual", "attention"),
}  # fmt: skip
POSITIONS = {"forgetting": "t5", "selective": "alibi"}
NAMES = ("talking", "differential", "gated", "forgetting", "contextual:positions=3", "selective")
close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5)


@functools.cache
def make(family, **more):
    """The model, and variables that are not at their start."""
    module = LanguageModel.of(**SIZES | {"positions": POSITIONS.get(family, "rotary"), "family": family} | more)
    return module, drawn(module.init, TOKENS)


@pytest.mark.parametrize("family", NAMES)
def test_a_text_read_in_passes_and_in_steps_is_the_text_read_whole(family):
    module, variables = make(family)
    whole = compiled(module)(variables, TOKENS)
    read = functools.partial(compiled(module, "extend"), variables)
    cache = compiled(module, "init_cache")(variables, jnp.tile(jnp.arange(6), (2, 1)))
    logits, cache = read(TOKENS[:, :4], jnp.array([2, 3]), cache)
    close(logits, whole[jnp.arange(2), jnp.array([1, 2])])
    logits, cache = read(jnp.array([[6, 7, 0, 0], [5, 0, 0, 0]]), jnp.array([2, 1]), cache)
    close(logits, whole[:, 3])
    for position in (4, 5):
        logits, cache = compiled(module, "step")(variables, TOKENS[:, position], cache)
        close(logits, whole[:, position])


@pytest.mark.parametrize("family", NAMES)
def test_a_packed_text_reads_as_it_would_alone_and_none_sees_the_future(family):
    module, variables = make(family)
    alone = compiled(module)(variables, TOKENS)
    packed = jnp.concatenate([jnp.zeros((1, 2), jnp.int32), TOKENS.reshape(1, -1)], axis=1)
    order = jnp.arange(6)[None]
    positions = jnp.concatenate([jnp.zeros((1, 2), jnp.int32), order, order], axis=1)
    segments = jnp.array([[0, 0] + [1] * 6 + [2] * 6])
    together = compiled(module)(variables, packed, positions, segments)
    close(together[0, 2:].reshape(alone.shape), alone)
    later = compiled(module)(variables, TOKENS.at[:, 4:].set(2))
    np.testing.assert_array_equal(later[:, :4], alone[:, :4])
    assert not np.allclose(later[:, 4:], alone[:, 4:])


def with_gains_of_one(path, leaf):
    return jnp.ones_like(leaf) if path[-1].key == "head_gain" else leaf


@pytest.mark.parametrize("stacked", [False, True])
def test_layers_know_their_number_stacked_or_not(stacked):
    module, variables = make("differential", layers=2)
    variables = jax.tree_util.tree_map_with_path(with_gains_of_one, variables)
    whole = compiled(module)(variables, TOKENS)
    module = module.clone(layer=module.layer._replace(stacked=stacked))
    variables = stack_layers(variables) if stacked else variables
    close(compiled(module)(variables, TOKENS), whole)
    outputs = compiled(module, "attention")(variables, TOKENS)["decoder"].outputs
    for layer in (0, 1):
        size = np.sqrt(np.mean(np.square(outputs[:, layer]), axis=-1))
        np.testing.assert_allclose(size, 1 - (0.8 - 0.6 * np.exp(-0.3 * layer)), rtol=1e-3)


def test_a_translator_has_a_family_for_every_kind_and_steps_as_it_is_taught():
    families = {"family": "contextual:positions=3", "encoder_family": "talking", "cross_family": "differential"}
    module, variables = trained("transformer_book", **families, **ONE_LAYER)
    whole = compiled(module)(variables, SOURCE, LENGTHS, INPUTS)
    memory = compiled(module, "encode")(variables, SOURCE, LENGTHS)
    cache = jax.jit(lambda variables, memory: module.apply(variables, memory, 5, method="init_cache"))(
        variables, memory
    )
    for t in range(INPUTS.shape[1]):
        logits, cache = compiled(module, "step")(variables, INPUTS[:, t], cache)
        close(logits, whole[:, t])
    for key in families:
        other = build("transformer_book", **families | {key: "plain"}, **ONE_LAYER)
        assert jax.tree.structure(shapes(module)) != jax.tree.structure(shapes(other))


def language_model(**changed):
    return LanguageModel.of(**SIZES | {"positions": "none"} | changed)


translator = functools.partial(build, "transformer_book")
unnormed = functools.partial(language_model, qk_norm=False)


def shapes(module):
    return jax.eval_shape(module.init, jax.random.key(0), SOURCE, LENGTHS, INPUTS)


@pytest.mark.parametrize(
    ("build", "changed", "message"),
    [
        (unnormed, {"family": "selective", "mixer": "gru"}, "family='selective': mixer='gru' has no attention"),
        (language_model, {"cross_family": "gated"}, "cross_family='gated': a language model has no attention to a so"),
        (language_model, {"family": "differential", "width": 12}, "family='differential': cuts a head in halves, and"),
        (
            language_model,
            {"family": "differential", "positions": "shaw"},
            "positions='shaw': adds to values, which family='differential' does not cut",
        ),
        (language_model, {"family": "talking", "backend": "chunked"}, "backend='chunked': it never makes the maps"),
        (translator, {"encoder_family": "selective"}, "encoder_family='selective': needs queries that come after"),
        (translator, {"cross_family": "forgetting"}, "cross_family='forgetting': needs queries that come after"),
        (translator, {"encoder_family": "talking", "encoder_mixer": "gru"}, "encoder_mixer='gru' has no attention"),
        (language_model, {"family": "plain:parts=2"}, "family='plain:parts=2': has no option 'parts'"),
        (translator, {"family": "talking", "mixer": "gru"}, "family='talking': mixer='gru' has no attention to read"),
    ],
)
def test_a_family_that_a_model_cannot_have_is_refused_by_its_key(build, changed, message):
    with pytest.raises(ValueError, match=message):
        build(**changed)
