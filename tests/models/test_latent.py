"""Multi-head latent attention: what is read of latents alone is what is read of the keys and values made of them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled, drawn

from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.attention import Edit
from attention_jax.ops.positions import rotate

TOKENS = jnp.array([[4, 5, 6, 7, 8, 3], [9, 2, 5, 5, 1, 3]])
SIZES = {
    "vocabulary": 11, "layers": 1, "width": 8, "heads": 2, "kv_heads": 2, "qk_norm": False, "feed_forward": 16,
    "activation": "gelu", "gated": False, "norm": "rms", "norm_first": True, "max_length": 12, "is_tied": True,
    "mixer": "latent:rank=5,rotary=2", "reach": 2, "dropout_sites": (), "positions": "rotary",
}  # fmt: skip


@functools.cache
def make(**more):
    module = LanguageModel.of(**SIZES | more)
    return module, drawn(module.init, TOKENS)


def oracle(params, x):
    """What one text of a layer reads, head by head and pair by pair, in float64."""
    p = {name: np.asarray(array, np.float64) for name, array in params.items()}
    turn = lambda a: np.asarray(rotate(jnp.asarray(a[None], jnp.float32), jnp.arange(len(a))[None])[0], np.float64)  # noqa: E731
    latent, key_turned, outputs = x @ p["latent"], turn(x @ p["key_turned"]), np.zeros((len(x), 8))
    for head in range(2):
        own, turned = slice(4 * head, 4 * head + 4), slice(2 * head, 2 * head + 2)
        query, query_turned = x @ p["query"][:, own], turn(x @ p["query_turned"][:, turned])
        key, value = latent @ p["key"][:, own], latent @ p["value"][:, own]
        for i in range(len(x)):
            scores = [(query[i] @ key[j] + query_turned[i] @ key_turned[j]) / math.sqrt(6) for j in range(i + 1)]
            weights = np.exp(scores) / np.exp(scores).sum()
            outputs[i, own] = weights @ value[: i + 1]
    return outputs @ p["out"]


def test_a_layer_reads_what_the_formula_says_head_by_head():
    module, variables = make()
    _, kept = jax.jit(functools.partial(module.apply, capture_intermediates=True))(variables, TOKENS)
    of_layer = kept["intermediates"]["layer_0"]
    x, found = of_layer["residuals_0"]["norm"]["__call__"][0], of_layer["self_attention"]["__call__"][0][0]
    for text in range(2):
        expected = oracle(variables["params"]["layer_0"]["self_attention"], np.asarray(x[text], np.float64))
        np.testing.assert_allclose(found[text], expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("more", [{}, {"normalize": "learned_sink", "backend": "chunked", "layers": 2}])
def test_reading_latents_alone_is_reading_the_keys_and_values_made_of_them(more):
    module, variables = make(**more)
    whole = compiled(module)(variables, TOKENS)
    cache = compiled(module, "init_cache")(variables, jnp.tile(jnp.arange(6), (2, 1)))
    logits, cache = compiled(module, "extend")(variables, TOKENS[:, :4], jnp.array([4, 4]), cache)
    np.testing.assert_allclose(logits, whole[:, 3], rtol=2e-4, atol=2e-5)
    for position in (4, 5):
        logits, cache = compiled(module, "step")(variables, TOKENS[:, position], cache)
        np.testing.assert_allclose(logits, whole[:, position], rtol=2e-4, atol=2e-5)
    assert {leaf.shape for leaf in jax.tree.leaves(cache.history)} == {(2, 6, 5), (2, 6, 2)}


def test_heads_show_their_weights_and_outputs_and_are_edited():
    module, variables = make()
    weights, outputs = compiled(module, "attention")(variables, TOKENS)["decoder"]
    assert (weights.shape, outputs.shape) == ((2, 1, 2, 6, 6), (2, 1, 2, 6, 4))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    blind = jax.tree.map(lambda array: array, variables)
    own = blind["params"]["layer_0"]["self_attention"]
    own["out"] = own["out"].at[:4].set(0)
    gated = compiled(module)(variables, TOKENS, edits={"decoder": Edit(jnp.array([[0.0, 1.0]]))})
    np.testing.assert_allclose(gated, compiled(module)(blind, TOKENS), rtol=1e-4, atol=1e-5)


def test_positions_turn_the_latents_own_features_however_many_a_head_has():
    sizes = SIZES | {"width": 6, "heads": 2, "kv_heads": 2}
    assert LanguageModel.of(**sizes).new_encoding().sizes.head_size == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kv_heads": 1}, "kv_heads=1: heads of mixer='latent:rank=5,rotary=2' share latents, not keys. Set kv_heads="),
        ({"mixer": "latent:rotary=3"}, "mixer='latent:rotary=3': rotary=3: needs an even number"),
        ({"mixer": "latent:rank=0"}, "mixer='latent:rank=0': rank=0: needs a whole number, 1 or more"),
        ({"score": "dot"}, "score='dot': mixer='latent:rank=5,rotary=2' does not read it"),
        (
            {"positions": "alibi"},
            "positions='alibi': acts on scores or what makes them, which mixer='latent:rank=5,rotary=2'",
        ),
        ({"positions": "rotary:fraction=0.5"}, "positions='rotary:fraction=0.5': fraction=0.5: turns 1 of 2 features"),
        ({"backend": "cudnn"}, "backend='cudnn': not for mixer='latent:rank=5,rotary=2'. Choose reference or chunked"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(more, message):
    with pytest.raises(ValueError, match=message):
        LanguageModel.of(**SIZES | more)
