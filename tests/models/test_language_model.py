"""A language model with every position encoding: cached, packed, padded and causal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled, drawn

from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.attention import Edit
from attention_jax.modules.families import BUILDERS as FAMILIES
from attention_jax.modules.linear import RULES
from attention_jax.modules.mixers import BUILDERS as MIXERS
from attention_jax.modules.mixers import attends
from attention_jax.ops.positions import BUILDERS, ENCODINGS
from attention_jax.ops.scoring import SCORES
from attention_jax.training.products import with_fast_gradients

TURNED = ("window", "retention")  # by positions
TOKENS = jnp.array([[4, 5, 6, 7, 8, 3], [9, 2, 5, 5, 1, 3]])
ORDER = jnp.tile(jnp.arange(6), (2, 1))  # the positions of texts that begin at 0
POSITIONS = jnp.array([[0, 2, 3, 7, 8, 11], [1, 2, 4, 5, 6, 10]])
SIZES = {
    "vocabulary": 11, "layers": 1, "width": 8, "heads": 2, "kv_heads": 1, "qk_norm": False, "feed_forward": 16,
    "activation": "gelu", "gated": False, "norm": "layer", "norm_first": True, "max_length": 12, "is_tied": True,
    "mixer": "attention", "reach": 2,
    "dropout_sites": ("residual", "attention"),
}  # fmt: skip
DEEP = ("t5", "shaw:clip=2", "delta")  # of two layers: shared parameters, each layer's own, a state
OF_A_STATE = {"dropout_sites": ("residual",)}  # a mixer with a state has no weights to drop

STATES = [mixer for mixer in MIXERS if not attends(mixer)]
ALL = [
    *BUILDERS,
    "randomized_sinusoidal:longest=12",
    "rotary:scaling=yarn,factor=4,trained_length=8",
    "rotary:scaling=yarn_index,factor=4,trained_length=8",
    "shaw:clip=2",
]


@functools.cache
def make(name, **more):
    """The model, and variables that are not at their start."""
    mixer = more.get("mixer", "attention")
    fitting = {"kv_heads": 2} if mixer == "latent" else {} if attends(mixer) else OF_A_STATE
    depth = {"layers": 2} if {name, mixer} & {*DEEP} else {}
    module = LanguageModel.of(**SIZES | depth | fitting | {"positions": name} | more)
    return module, drawn(module.init, TOKENS)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {}) for name in ALL),
        *(("none", {"mixer": mixer}) for mixer in (*MIXERS, *(f"{rule}:block=1" for rule in RULES))),
        *(("none", {"score": {"location": "location:longest=12"}.get(score, score)}) for score in SCORES),
        *(("none", {"family": family, "kv_heads": 2}) for family in FAMILIES),
    ],
)
def test_every_model_has_the_gradients_that_are_fast_on_a_cpu(name, more):
    module, variables = make(name, **more)
    gradients = jax.grad(lambda variables: jnp.sum(module.apply(variables, TOKENS, POSITIONS)))
    found = jax.eval_shape(with_fast_gradients(gradients), variables)
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, variables)


@pytest.mark.parametrize("name", ALL)
def test_a_cached_step_says_what_the_whole_text_does(name):
    module, variables = make(name)
    whole = compiled(module)(variables, TOKENS, POSITIONS)
    cache = compiled(module, "init_cache")(variables, POSITIONS)
    for position in range(TOKENS.shape[1]):
        logits, cache = compiled(module, "step")(variables, TOKENS[:, position], cache)
        np.testing.assert_allclose(logits, whole[:, position], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ALL)
def test_a_text_read_in_one_pass_is_as_read_step_by_step_whatever_pads_it(name):
    module, variables = make(name)
    whole = compiled(module)(variables, TOKENS, POSITIONS)
    read = functools.partial(compiled(module, "extend"), variables)
    cache = compiled(module, "init_cache")(variables, POSITIONS)
    counts, rest = jnp.array([2, 3]), jnp.array([[6, 7, 0, 0], [5, 0, 0, 0]])
    logits, cache = read(TOKENS[:, :4], counts, cache)
    np.testing.assert_allclose(logits, whole[jnp.arange(2), counts - 1], rtol=2e-4, atol=2e-5)
    logits, cache = read(rest, jnp.array([2, 1]), cache)
    np.testing.assert_allclose(logits, whole[:, 3], rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(cache.cursor, [4, 4])


@pytest.mark.parametrize("name", ALL)
def test_a_step_past_the_caches_room_is_nan_for_the_text_that_takes_it_alone(name):
    module, variables = make(name)
    cache = compiled(module, "init_cache")(variables, POSITIONS)
    for position in range(TOKENS.shape[1]):
        before = cache
        logits, cache = compiled(module, "step")(variables, TOKENS[:, position], cache)
    assert np.isfinite(logits).all()
    uneven = before._replace(cursor=jnp.array([5, 6]))
    past, _ = compiled(module, "step")(variables, TOKENS[:, -1], uneven)
    np.testing.assert_array_equal(past[0], logits[0])
    assert np.isnan(past[1]).all()


@pytest.mark.parametrize("mixer", MIXERS)
def test_what_is_not_valid_is_read_by_no_token_and_may_be_told_by_segments_where_layers_attend(mixer):
    module, variables = make("none", mixer=mixer)
    apply, valid = compiled(module), jnp.ones((2, 8), bool).at[:, 2:4].set(False)
    texts = jnp.pad(TOKENS, ((0, 0), (2, 0)), constant_values=7)
    logits, other = (apply(variables, texts.at[:, 2:4].set(word), None, None, None, valid) for word in (3, 9))
    np.testing.assert_array_equal(np.asarray(logits)[valid], np.asarray(other)[valid])
    if mixer not in ("window", "convolution"):  # whose reach is counted in places
        alone = apply(variables, jnp.delete(texts, jnp.array([2, 3]), axis=1))
        np.testing.assert_allclose(np.asarray(logits)[valid].reshape(alone.shape), alone, rtol=2e-4, atol=2e-5)
    if attends(mixer):
        same = apply(variables, texts, None, valid.astype(jnp.int32))
        np.testing.assert_allclose(np.asarray(same)[valid], np.asarray(logits)[valid], rtol=1e-5, atol=1e-6)
        with pytest.raises(ValueError, match="segments and valid are both given"):
            module.apply(variables, TOKENS, None, jnp.ones_like(TOKENS), None, valid)


@pytest.mark.parametrize("is_tied", [True, False])
def test_bfloat16_logits_are_the_exact_product_of_what_is_multiplied_in_float32(is_tied):
    module, variables = make("rotary", is_tied=is_tied, dtype=jnp.bfloat16, width=64)
    found, kept = jax.jit(lambda: module.apply(variables, TOKENS, capture_intermediates=True))()
    half = lambda array: np.asarray(array.astype(jnp.bfloat16), np.float64)  # noqa: E731
    x, params = half(kept["intermediates"]["last_norm"]["__call__"][0]), variables["params"]
    matrix = half(params["embedding"]["embedding"]).T if is_tied else half(params["logits"]["kernel"])
    exact = x @ matrix + (0 if is_tied else half(params["logits"]["bias"]))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("name", ALL)
def test_a_packed_text_reads_as_it_would_alone_and_so_does_one_padded_on_the_left(name):
    module, variables = make(name)
    alone = compiled(module)(variables, TOKENS, ORDER)
    packed = jnp.concatenate([jnp.zeros((1, 2), jnp.int32), TOKENS.reshape(1, -1)], axis=1)
    order = jnp.arange(6)[None]
    positions = jnp.concatenate([jnp.zeros((1, 2), jnp.int32), order, order], axis=1)
    segments = jnp.array([[0, 0] + [1] * 6 + [2] * 6])
    if name == "learned":
        module = module.clone(max_length=14)
        rows = variables["params"]["encoding"]["table"]
        variables = {"params": {**variables["params"], "encoding": {"table": jnp.pad(rows, ((0, 2), (0, 0)))}}}
    if name.startswith("randomized"):
        module = module.clone(positions="randomized_sinusoidal:longest=14")
    together = compiled(module)(variables, packed, positions, segments)
    np.testing.assert_allclose(together[0, 2:].reshape(alone.shape), alone, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ALL)
def test_no_token_sees_the_future(name):
    module, variables = make(name)
    later = TOKENS.at[:, 4:].set(2)
    apply = compiled(module)
    before, after = (apply(variables, tokens, ORDER) for tokens in (TOKENS, later))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("name", [name for name in ALL if name != "none"])
def test_positions_matter(name):
    module, variables = make(name)
    apply = compiled(module)
    assert not np.allclose(apply(variables, TOKENS, ORDER), apply(variables, TOKENS, 2 * ORDER), atol=1e-4)


def test_without_positions_only_the_set_of_earlier_tokens_matters():
    module, variables = make("none")
    apply, swapped = compiled(module), TOKENS[:, jnp.array([2, 0, 1, 3, 4, 5])]
    found, other = (apply(variables, tokens, ORDER) for tokens in (TOKENS, swapped))
    np.testing.assert_allclose(found[:, 3:], other[:, 3:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name.startswith("randomized")])
def test_randomized_positions_are_drawn_outside_and_handed_in(name):
    module, variables = make(f"{name}:longest=64")
    draw = module.new_encoding().record.sample_positions
    positions = jax.vmap(lambda key: draw(key, jnp.zeros(6, int)))(jax.random.split(jax.random.key(0), 2))
    assert (np.diff(positions) > 0).all()
    assert np.isfinite(compiled(module)(variables, TOKENS, positions)).all()


@pytest.mark.parametrize(
    "mixer", [*(mixer for mixer in MIXERS if mixer not in ("attention", "latent")), "linear:features=positive"]
)
def test_what_stands_in_attentions_place_is_causal_and_reads_token_by_token_what_it_reads_at_once(mixer):
    module, variables = make("rotary" if mixer in TURNED else "none", mixer=mixer)
    apply = compiled(module)
    before, after = (apply(variables, tokens, ORDER) for tokens in (TOKENS, TOKENS.at[:, 4:].set(2)))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])
    cache = compiled(module, "init_cache")(variables, ORDER)
    parts = [(TOKENS[:, :4], [2, 3]), ([[6, 7, 0, 0], [8, 0, 0, 0]], [2, 0]), ([[8, 0, 0, 0], [5, 0, 0, 0]], [0, 1])]
    for tokens, counts in parts:  # a text may wait while another reads on
        tokens = jnp.asarray(tokens)
        last, cache = compiled(module, "extend")(variables, tokens, jnp.array(counts), cache)
    np.testing.assert_allclose(last[1], before[1, 3], rtol=2e-4, atol=2e-5)
    for position in (4, 5):
        logits, cache = compiled(module, "step")(variables, TOKENS[:, position], cache)
        np.testing.assert_allclose(logits, before[:, position], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("mixer", STATES)
def test_a_state_is_as_large_for_any_text_and_only_attention_has_heads_to_edit(mixer):
    module, variables = make("none", mixer=mixer)
    init = functools.partial(module.apply, method="init_cache")
    short, long = (jax.eval_shape(init, variables, jnp.zeros((2, room), jnp.int32)) for room in (3, 300))
    assert jax.tree.leaves(short.state) == jax.tree.leaves(long.state)
    assert not jax.tree.leaves(long.history)
    with pytest.raises(ValueError, match=f"mixer='{mixer}': has no attention whose heads could be edited"):
        module.apply(variables, TOKENS, edits={"decoder": Edit(jnp.ones((module.layers, 2)))})


@pytest.mark.parametrize(("mixer", "most"), [("retention", 2015), ("gated_linear", 16)])
def test_a_block_that_would_forget_more_than_float32_has_is_refused(mixer, most):
    LanguageModel.of(**SIZES | OF_A_STATE | {"positions": "none", "mixer": f"{mixer}:block={most}"})
    with pytest.raises(ValueError, match=f"block={most + 1}: needs {most} or less"):
        LanguageModel.of(**SIZES | OF_A_STATE | {"positions": "none", "mixer": f"{mixer}:block={most + 1}"})


@pytest.mark.parametrize("mixer", ["window", "convolution"])
def test_a_layer_reaches_as_far_as_it_says(mixer):
    module, variables = make("none", mixer=mixer, reach=2)
    apply = compiled(module)
    before, after = (apply(variables, tokens) for tokens in (TOKENS, TOKENS.at[:, 1].set(10)))
    changed = ~np.isclose(before, after, rtol=1e-5, atol=1e-6).all(axis=(0, 2))
    np.testing.assert_array_equal(changed, [False, True, True, True, False, False])


def test_attention_has_every_layer_and_head_and_each_row_sums_to_one():
    module, variables = make("rotary", layers=2)
    weights, outputs = compiled(module, "attention")(variables, TOKENS)["decoder"]
    assert weights.shape == (2, 2, 2, 6, 6)
    assert outputs.shape == (2, 2, 2, 6, 4)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"positions": "spiral"}, "positions='spiral': choose one of none"),
        ({"positions": "rotary", "width": 6}, "positions='rotary': needs an even head_size, not 3"),
        ({"positions": "shaw:clap=3"}, "positions='shaw:clap=3': has no option 'clap'"),
        ({"heads": 3, "kv_heads": 3}, "heads=3: must divide width=8"),
        ({"score": "cos"}, "score='cos': choose one of dot, scaled_dot"),
        ({"mixer": "mlp"}, "mixer='mlp': choose one of attention, window, latent, gru, convolution, linear"),
        (
            {"mixer": "linear:features=cosine"},
            "mixer='linear:features=cosine': features='cosine': choose one of elu, p",
        ),
        ({"mixer": "linear:count=0"}, "mixer='linear:count=0': count=0: needs a whole number, 1 or more"),
        ({"mixer": "linear:count=7"}, "mixer='linear:count=7': count=7: features='elu' has as many as a key"),
        ({"mixer": "delta", "qk_norm": True}, "qk_norm=True: mixer='delta' does not read it. Set qk_norm=False"),
        (
            {"mixer": "delta", "positions": "rotary"},
            "positions='rotary': acts on scores or what makes them, which mixer='delta' does not let it. Choose none",
        ),
        ({"layers": 0}, "layers=0: needs 1 or more"),
        ({"mixer": "gru", "score": "cosine"}, "score='cosine': mixer='gru' has no attention to read it. Set score='sc"),
        (
            {"mixer": "delta", "dropout_sites": ("residual", "attention")},
            r"dropout_sites=.*: mixer='delta' has no weights of attention to drop. Leave 'attention' out",
        ),
        (
            {"mixer": "convolution", "normalize": "sigmoid"},
            "normalize='sigmoid': mixer='convolution' has no attention to read it. Set normalize='softmax'",
        ),
        (
            {"cross_score": "dot"},
            "cross_score='dot': a language model has no attention to a source. Set cross_score=''",
        ),
        (
            {"mixer": "gru", "positions": "alibi"},
            "positions='alibi': acts on scores or what makes them, which mixer='gru'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(more, message):
    with pytest.raises(ValueError, match=message):
        LanguageModel.of(**SIZES | OF_A_STATE | {"positions": "none"} | more)


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "learned"])
def test_a_text_may_be_longer_than_any_table_where_an_encoding_has_none(name):
    module, variables = make(name)
    apply, longer = compiled(module), jnp.tile(TOKENS, (1, 7))
    assert longer.shape[1] > 3 * SIZES["max_length"]
    assert jax.eval_shape(apply, variables, longer).shape == (2, 42, 11)
    assert np.isfinite(apply(variables, TOKENS, 36 + ORDER)).all()
    assert np.isfinite(apply(variables, TOKENS, 10_000 + POSITIONS)).all()


@pytest.mark.parametrize("name", ["rotary", "alibi", "t5", "none"])
def test_values_know_no_positions(name):
    module, variables = make(name)
    alone = [compiled(module)(variables, TOKENS[:, :1], jnp.full((2, 1), position)) for position in (0, 7)]
    np.testing.assert_allclose(*alone, rtol=1e-4, atol=1e-5)  # what attends to itself alone reads its value


def test_positions_off_a_learned_table_are_never_silently_another():
    module, variables = make("learned")
    for position in (-1, SIZES["max_length"]):
        logits = compiled(module)(variables, TOKENS, POSITIONS.at[:, 2].set(position))
        assert np.isnan(logits).all()


def test_segments_are_refused_where_nothing_would_keep_them_apart():
    module, variables = make("none", mixer="delta")
    with pytest.raises(ValueError, match="mixer='delta': reads each row as one text"):
        module.apply(variables, TOKENS, None, jnp.ones_like(TOKENS))


def test_a_table_refuses_longer_texts():
    module, variables = make("learned")
    with pytest.raises(ValueError, match=r"positions='learned': has positions for 12 tokens, not for 13"):
        module.apply(variables, jnp.zeros((1, 13), jnp.int32))


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_bfloat16_models_gradient_of_a_token_is_the_sum_over_all_of_its_places(is_tied):
    """Of two thousand, of which bfloat16 would add up some hundreds."""
    tokens = jnp.tile(jnp.array([3, 3, 3, 3, 5, 6]), (64, 8))

    def gradient(dtype):
        module, variables = make("rotary", is_tied=is_tied, dtype=dtype, max_length=48)
        loss = lambda params: jnp.mean(module.apply({"params": params}, tokens)[..., 3])  # noqa: E731
        return jax.jit(jax.grad(loss))(variables["params"])["embedding"]["embedding"][3]

    full, half = gradient(jnp.float32), gradient(jnp.bfloat16)
    np.testing.assert_allclose(half, full, atol=0.03 * np.abs(full).max())
