"""What models' heads say of their weights: what the weights say that `attention` gives, and no map of them is made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import drawn
from translators import INPUTS, LENGTHS, SOURCE, trained

from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.attention import Edit

TOKENS = jnp.array([[4, 5, 6, 7, 8, 3, 2], [9, 2, 5, 5, 1, 3, 6]])
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 2, 0], [1, 2, 2, 2, 3, 3, 3]])
PLACES = np.array([[0, 1, 2, 0, 1, 2, 0], [0, 0, 1, 2, 0, 1, 2]])
SIZES = {
    "vocabulary": 11, "layers": 2, "width": 8, "heads": 4, "kv_heads": 2, "qk_norm": False, "feed_forward": 16,
    "activation": "gelu", "gated": False, "norm": "layer", "norm_first": True, "max_length": 12, "is_tied": True,
    "mixer": "attention", "reach": 2, "dropout_sites": (),
}  # fmt: skip


def make(positions, **more):
    """A model with variables that are not at their start, which has almost equal weights."""
    module = LanguageModel.of(**SIZES | {"positions": positions} | more)
    return module, drawn(module.init, TOKENS)


def both(module, *given, **asked):
    """The statistics and the weights, in one program."""
    return jax.jit(lambda: [module.apply(*given, **asked, method=method) for method in ("statistics", "attention")])()


def require_equal(found, weights, query_places, key_places):
    weights = np.asarray(weights, np.float64)
    between = np.abs(query_places[:, None, None, :, None] - key_places[:, None, None, None, :])
    is_first = np.broadcast_to(key_places[:, None, None, None, :] == 0, weights.shape)
    logs = np.log(np.where(weights > 0, weights, 1))
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(found.entropy, -(weights * logs).sum(-1), **close)
    np.testing.assert_allclose(found.distance, (weights * between).sum(-1), **close)
    np.testing.assert_allclose(found.first, (weights * is_first).sum(-1), **close)
    top = -np.sort(-weights, axis=-1)[..., : found.top_weights.shape[-1]]
    np.testing.assert_allclose(found.top_weights, top, **close)


CASES = {
    "rotary": {"positions": "rotary"},
    "shaw": {"positions": "shaw:clip=2"},
    "stacked": {"positions": "alibi", "stacked": True, "remat": "full"},
    "sink": {"positions": "randomized_sinusoidal:longest=12", "normalize": "learned_sink", "qk_norm": True},
    "entmax": {"positions": "none", "normalize": "entmax15", "mixer": "window"},
    "chunked": {"positions": "learned", "backend": "chunked", "score": "gaussian"},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("segments", [None, SEGMENTS])
def test_a_language_models_statistics_are_those_of_its_weights(name, segments):
    module, variables = make(**CASES[name])
    gate = jnp.array([[1.0, 0, 1, 1], [1, 1, 0.5, 1]])
    asked = {"positions": jnp.asarray(PLACES + 1), "segments": segments, "edits": {"decoder": Edit(gate=gate)}}
    found, heads = (each["decoder"] for each in both(module, variables, TOKENS, **asked))
    assert found.entropy.shape == (2, 2, 4, 7)
    places = np.tile(np.arange(7), (2, 1)) if segments is None else PLACES
    require_equal(found, heads.weights, places, places)


def test_masses_on_the_parts_of_a_text_add_up_to_that_on_all():
    module, variables = make("rotary")
    parts = jnp.array([[0, 0, 1, 1, 1, 2, 2]])
    asked = {"parts": parts, "num_parts": 3, "top": 2, "method": "statistics"}
    found = jax.jit(lambda tokens: module.apply(variables, tokens, **asked))(TOKENS)["decoder"]
    assert found.parts.shape == (2, 2, 4, 7, 3)
    assert found.top_keys.shape == (2, 2, 4, 7, 2)
    np.testing.assert_allclose(found.parts.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(found.parts[:, :, :, 1, 0], 1, rtol=1e-5)  # the second token sees the first part alone


def test_a_language_model_makes_no_map_for_its_statistics():
    length = 16384
    module = LanguageModel.of(**SIZES | {"positions": "alibi"})
    variables = jax.eval_shape(module.init, jax.random.key(0), TOKENS)
    program = jax.jit(lambda held, tokens: module.apply(held, tokens, method="statistics"))
    compiled = program.lower(variables, jax.ShapeDtypeStruct((1, length), jnp.int32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < length**2 / 4


def test_a_mixer_that_does_not_attend_has_no_statistics():
    module, variables = make("none", mixer="gru")
    with pytest.raises(ValueError, match="mixer='gru': has no attention to show"):
        module.apply(variables, TOKENS, method="statistics")


def test_a_translators_statistics_are_those_of_its_weights_of_every_kind():
    module, variables = trained("transformer_small", encoder_layers=2, decoder_layers=2)
    found, heads = both(module, variables, SOURCE, LENGTHS, INPUTS)
    assert set(found) == set(heads) == {"encoder", "decoder", "cross"}
    for kind, told in found.items():
        queries, keys = heads[kind].weights.shape[-2:]
        require_equal(told, heads[kind].weights, np.arange(queries)[None], np.arange(keys)[None])
