"""Patterns in models: cached, packed, padded, causal, in a cache of bounded size, and where they are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled, drawn
from translators import INPUTS, LENGTHS, ONE_LAYER, SOURCE, build, trained

from attention_jax.models.in_context import InContextRegressor
from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.spec import with_backend
from attention_jax.ops.masking import causal_mask
from attention_jax.tasks.needs import held_bytes

TOKENS = jax.random.randint(jax.random.key(0), (2, 14), 1, 11)
SIZES = {
    "vocabulary": 11, "layers": 1, "width": 8, "heads": 2, "kv_heads": 1, "qk_norm": False, "feed_forward": 16,
    "activation": "gelu", "gated": False, "norm": "layer", "norm_first": True, "max_length": 40, "is_tied": True,
    "reach": 2, "dropout_sites": (),
}  # fmt: skip
LOCAL, BIG_BIRD = "local:window=2,dilation=2,first=1", "big_bird:block=2,window=0"
STREAMING = "streaming:sinks=2,window=3"
NAMES = {
    LOCAL: {"positions": "rotary", "mixer": "latent", "kv_heads": 2},
    BIG_BIRD: {"positions": "t5", "backend": "chunked:queries=4,keys=4"},
    "strided:stride=3": {"positions": "learned", "layers": 2},
    STREAMING: {"positions": "rotary", "backend": "chunked:queries=4,keys=4"},
    "streaming:sinks=0,window=4": {"positions": "alibi", "family": "differential"},
    "streaming:sinks=1,window=2": {
        "positions": "shaw:clip=2",
        "layers": 2,
        "stacked": True,
        "normalize": "learned_sink",
    },
}
close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5)


@functools.cache
def make(pattern):
    """The model, and variables that are not at their start."""
    module = LanguageModel.of(**SIZES | NAMES[pattern] | {"pattern": pattern})
    return module, drawn(module.init, TOKENS)


@pytest.mark.parametrize("pattern", NAMES)
def test_a_text_read_in_passes_and_in_steps_is_the_text_read_whole(pattern):
    module, variables = make(pattern)
    positions = jnp.cumsum(jax.random.randint(jax.random.key(1), TOKENS.shape, 1, 3), axis=1)  # with gaps
    whole = compiled(module)(variables, TOKENS, positions)
    cache, begun = compiled(module, "init_cache")(variables, positions), jnp.array([0, 0])
    for counts in ([7, 5], [0, 2], [3, 7]):
        counts = jnp.array(counts)
        index = jnp.minimum(begun[:, None] + jnp.arange(7)[None], 13)
        chunk = jnp.where(jnp.arange(7)[None] < counts[:, None], jnp.take_along_axis(TOKENS, index, axis=1), 0)
        logits, cache = compiled(module, "extend")(variables, chunk, counts, cache)
        begun = begun + counts
        for text in range(2):
            if counts[text]:
                close(logits[text], whole[text, begun[text] - 1])
    assert begun.tolist() == [10, 14]
    for place in range(10, 14):
        logits, cache = compiled(module, "step")(variables, jnp.array([TOKENS[0, place], 1]), cache)
        close(logits[0], whole[0, place])


@pytest.mark.parametrize("pattern", NAMES)
def test_a_packed_or_padded_text_reads_as_it_would_alone_and_none_sees_the_future(pattern):
    module, variables = make(pattern)
    alone = compiled(module)(variables, TOKENS[:, :8])
    order, zeros = jnp.arange(8), jnp.zeros((2, 3), jnp.int32)
    packed = jnp.concatenate([zeros[:1], TOKENS[:, :8].reshape(1, -1)], axis=1)
    positions, segments = jnp.concatenate([zeros[0], order, order])[None], jnp.array([[0] * 3 + [1] * 8 + [2] * 8])
    together = compiled(module)(variables, packed, positions, segments)
    close(together[0, 3:].reshape(alone.shape), alone)
    padded = jnp.concatenate([zeros, TOKENS[:, :8]], axis=1)
    valid, positions = jnp.arange(11)[None] >= jnp.array([[3], [3]]), jnp.maximum(jnp.arange(11) - 3, 0)[None]
    close(compiled(module)(variables, padded, positions, None, None, valid)[:, 3:], alone)
    later = compiled(module)(variables, TOKENS[:, :8].at[:, 5:].set(2))
    np.testing.assert_array_equal(later[:, :5], alone[:, :5])


def test_weights_are_0_where_the_pattern_forbids():
    module, variables = make(STREAMING)
    weights = compiled(module, "attention")(variables, TOKENS)["decoder"].weights
    allowed = np.array([[k <= q and (k < 2 or k > q - 3) for k in range(14)] for q in range(14)])
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(allowed, weights.shape))


def test_a_stream_s_cache_takes_the_same_bytes_for_a_text_of_any_length():
    module, _ = make(STREAMING)
    of_each, of_all = held_bytes(module)
    keys_and_values = 2 * 4 * 4  # of one head of 4 features in float32
    assert (of_each, of_all) == (0, module.layers * (2 + 3) * keys_and_values)
    whole = LanguageModel.of(**SIZES | NAMES[STREAMING])
    assert held_bytes(whole) == (module.layers * keys_and_values, 0)


def test_a_translator_has_a_pattern_for_each_text_and_steps_as_it_is_taught():
    patterns = {"pattern": "local:window=1", "encoder_pattern": BIG_BIRD}
    module, variables = trained("transformer_book", **patterns, **ONE_LAYER)
    whole = compiled(module)(variables, SOURCE, LENGTHS, INPUTS)
    memory = compiled(module, "encode")(variables, SOURCE, LENGTHS)
    empty = jax.jit(lambda variables, memory: module.apply(variables, memory, 5, method="init_cache"))
    cache = empty(variables, memory)
    for t in range(INPUTS.shape[1]):
        logits, cache = compiled(module, "step")(variables, INPUTS[:, t], cache)
        close(logits, whole[:, t])
    heads = compiled(module, "attention")(variables, SOURCE, LENGTHS, INPUTS)
    np.testing.assert_array_equal(heads["decoder"].weights[..., 3, :2], 0)
    encoder = heads["encoder"].weights[0, 0, 0]  # of 5 words: blocks are 0, 0, 1, 1, 2
    assert (encoder[:2] > 0).all()
    assert (encoder[:, :2] > 0).all()


def language_model(**changed):
    return LanguageModel.of(**SIZES | {"positions": "none"} | changed)


def in_context(**changed):
    of_tokens = ("vocabulary", "is_tied")
    sizes = {name: size for name, size in SIZES.items() if name not in of_tokens}
    return InContextRegressor.of(**sizes | {"positions": "none", "outputs": 1} | changed)


translator = functools.partial(build, "transformer_book")


@pytest.mark.parametrize(
    ("build", "changed", "message"),
    [
        (language_model, {"pattern": "ring"}, "pattern='ring': choose one of all, local"),
        (language_model, {"pattern": LOCAL, "mixer": "gru"}, f"pattern='{LOCAL}': mixer='gru' does not read it"),
        (language_model, {"pattern": LOCAL, "mixer": "window"}, "mixer='window' does not read it. Set pattern='all'"),
        (language_model, {"pattern": LOCAL, "family": "forgetting"}, "family='forgetting' needs every key before a"),
        (
            language_model,
            {"pattern": STREAMING, "mixer": "latent", "kv_heads": 2},
            "mixer='latent' with score='scaled_dot' cannot",
        ),
        (
            language_model,
            {"pattern": STREAMING, "score": "location:longest=9"},
            "with score='location:longest=9' cannot read",
        ),
        (in_context, {"pattern": LOCAL}, f"pattern='{LOCAL}': a query here is answered from all pairs before it"),
        (translator, {"pattern": STREAMING}, f"^pattern='{STREAMING}': a language model's alone"),
        (translator, {"encoder_pattern": STREAMING}, f"^encoder_pattern='{STREAMING}': a language model's alone"),
        (translator, {"encoder_pattern": LOCAL, "encoder_mixer": "gru"}, "^encoder_pattern=.*: encoder_mixer='gru' do"),
    ],
)
def test_a_pattern_that_a_model_cannot_have_is_refused_by_its_key(build, changed, message):
    with pytest.raises(ValueError, match=message):
        build(**changed)


def test_a_kernel_that_knows_no_patterns_is_not_chosen_for_one():
    flat = SIZES | {"positions": "none", "score": "scaled_dot", "normalize": "softmax", "dtype": "bfloat16"}
    told = []
    flat |= {"backend": "cudnn/chunked", "pattern": LOCAL}
    assert with_backend(flat, 64, [causal_mask(64, 64)], told.append)["backend"] == "chunked"
    assert "rule" in told[0]
