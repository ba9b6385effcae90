"""The counted FLOPs of whole models agree with counts by hand, to the last multiply-add."""

import jax
import jax.numpy as jnp
import pytest
from translators import SIZES, build

from attention_jax.models.in_context import InContextRegressor
from attention_jax.models.language_model import LanguageModel
from attention_jax.tasks.needs import counted, held_bytes, unseen_flops
from attention_jax.training.cost import flops
from configs.language_model import TRANSFORMER

B, S, T, V = 3, 7, 5, 13


def transformer():
    d, f, layers = (SIZES[name] for name in ("width", "feed_forward", "encoder_layers"))
    project = lambda tokens: tokens * d * d  # noqa: E731
    attend = lambda queries, keys: 2 * queries * keys * d  # scores, then values  # noqa: E731
    encoder = 4 * project(S) + attend(S, S) + 2 * S * d * f
    decoder = 4 * project(T) + attend(T, T) + 2 * project(T) + 2 * project(S) + attend(T, S) + 2 * T * d * f
    return layers * (encoder + decoder) + T * d * V


def cell(inputs, h):
    return 3 * h * (inputs + h)


def bahdanau():
    e, h, layers = recurrent_sizes()
    attention = T * (h * h + S * h + S * 2 * h)  # query, score, context
    decoder = T * (cell(e + 2 * h, h) + (layers - 1) * cell(h, h))
    readout = T * (h + 2 * h + e) * 2 * h + T * h * V
    return recurrent_encoder() + attention + decoder + readout


def luong():
    e, h, layers = recurrent_sizes()
    attention = T * (S * h + S * 2 * h + (2 * h + h) * h)  # score, context, attentional vector
    decoder = T * (cell(e + h, h) + (layers - 1) * cell(h, h))
    return recurrent_encoder() + attention + decoder + T * h * V


def recurrent_sizes():
    return (SIZES[name] for name in ("embedding", "hidden", "layers"))


def recurrent_encoder():
    e, h, layers = recurrent_sizes()
    bridges, keys = layers * 2 * h * h, S * 2 * h * h
    return S * 2 * (cell(e, h) + (layers - 1) * cell(2 * h, h)) + bridges + keys


COUNTED = [("transformer_small", transformer), ("bahdanau", bahdanau), ("luong_general", luong)]


@pytest.mark.parametrize(("name", "by_hand"), COUNTED)
def test_flops_are_those_of_the_formulas_and_training_costs_three_times_the_forward_pass(name, by_hand):
    module = build(name)
    source, lengths, inputs = (jnp.full(shape, 4, jnp.int32) for shape in ((B, S), (B,), (B, T)))
    variables = jax.eval_shape(module.init, jax.random.key(0), source, lengths, inputs)
    forward = lambda variables: module.apply(variables, source, lengths, inputs)  # noqa: E731
    expected = 2 * B * by_hand()
    assert flops(forward, variables) == expected
    assert flops(jax.grad(lambda variables: forward(variables).sum()), variables) == 3 * expected


SMALL = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 4, "feed_forward": 8, "backend": "reference"}


def language_model(**more):
    return LanguageModel.of(vocabulary=V, **TRANSFORMER | SMALL | {"positions": "none"} | more)


WIDTH, HEADS, CLIP, HIDDEN = 32, 4, 16, 32  # CLIP and HIDDEN: the defaults of `shaw` and `fire`
OF_A_PAIR = {  # what a layer multiplies for a pair of a query and a key, forward: each product has two backward
    (): WIDTH + WIDTH,  # its score; its weight and value
    ("family", "talking"): 2 * WIDTH + 2 * HEADS**2,  # heads mixed before and after
    ("family", "differential"): WIDTH + 2 * WIDTH,  # halves of features, each half's weights with whole values
    ("family", "gated"): 2 * WIDTH,
    ("family", "forgetting"): 2 * WIDTH,
    ("family", "contextual"): 2 * WIDTH,
    ("family", "selective"): 2 * WIDTH + WIDTH / HEADS,  # the first head's score once more
    ("score", "l2"): 2 * WIDTH,
    ("score", "laplacian"): WIDTH,  # no product makes it
    ("score", "additive:hidden=5"): HEADS * 5 + WIDTH,
    ("score", "concat:hidden=6"): HEADS * 6 + WIDTH,
    ("score", "location"): 2 * WIDTH,
    ("mixer", "latent:rank=6,rotary=2"): 2 * WIDTH + HEADS * 2,
    ("positions", "alibi"): 2 * WIDTH,
    ("positions", "fire"): 2 * WIDTH + HIDDEN + HIDDEN * HEADS,
}


@pytest.mark.parametrize(("option", "features"), OF_A_PAIR.items(), ids=str)
def test_what_causality_hides_is_of_every_product_that_grows_with_the_square_of_the_length(option, features):
    model = language_model(**dict([option] if option else []))
    assert unseen_flops(model, B, S, own_positions=True) == 3 * 2 * B * SMALL["layers"] * features * S * (S - 1) / 2


@pytest.mark.parametrize(
    ("option", "features"),  # forward and backward
    [
        (("score", "zero"), 2 * WIDTH),  # weights are constant: they have no gradient
        (("positions", "shaw"), 3 * 2 * WIDTH + 2 * HEADS * (2 * CLIP + 1)),  # nor has a distance's place in the table
    ],
)
def test_what_has_no_gradient_has_one_product_less(option, features):
    model = language_model(**dict([option]))
    assert unseen_flops(model, B, S) == 2 * B * SMALL["layers"] * features * S * (S - 1) / 2


def test_what_positions_alone_decide_is_counted_once_where_texts_share_them():
    sizes = {name: value for name, value in (TRANSFORMER | SMALL).items() if name != "is_tied"}
    regressor = InContextRegressor.of(outputs=1, **sizes | {"positions": "fire"})
    features, once = B * 2 * WIDTH, HIDDEN + HIDDEN * HEADS
    for model in (regressor, language_model(positions="fire")):
        assert unseen_flops(model, B, S) == 3 * 2 * SMALL["layers"] * (features + once) * S * (S - 1) / 2


def test_of_a_translator_the_decoder_is_causal():
    model = build("transformer_small", cross_score="additive:hidden=3", encoder_layers=5)
    by_pair = unseen_flops(model, B, S) / (S * (S - 1) / 2)
    assert by_pair == 3 * 2 * B * model.decoder_layers * 2 * SIZES["width"]


def forward_flops(model, length):
    tokens = jnp.zeros((B, length), jnp.int32)
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
    return flops(lambda variables: model.apply(variables, tokens), variables)


@pytest.mark.parametrize(
    ("mixer", "projections", "more", "features", "writes", "values"),  # `projections`: matrices of width²
    [
        ("linear", 4, 0, 8, 1, 9),
        ("linear:features=positive,count=5", 4, 2 * WIDTH * 5, 5, 1, 9),
        ("retention", 5, 0, 8, 1, 8),
        ("gated_linear", 5, 2 * 16 * WIDTH, 8, 1, 8),
        ("delta", 4, WIDTH * HEADS, 8, 2, 8),
    ],
)
def test_mixers_with_a_state_are_counted_as_what_is_written_to_it_and_read_of_it(
    mixer, projections, more, features, writes, values
):
    model, d = counted(language_model(mixer=mixer)), WIDTH
    state = HEADS * features * values * (writes + 1)
    layer = projections * d * d + more + state + 2 * d * SMALL["feed_forward"]
    assert forward_flops(model, T) == 2 * B * T * (2 * layer + d * V)
    assert unseen_flops(model, B, T) == 0


def test_what_a_pattern_forbids_is_not_counted_either():
    whole, length = language_model(), 300
    by_pair = unseen_flops(whole, B, S) / (S * (S - 1) / 2)
    seen = sum(1 for q in range(length) for k in range(q + 1) if k < 2 or q - k < 9)
    narrow = language_model(pattern="streaming:sinks=2,window=9")
    assert unseen_flops(narrow, B, length) == by_pair * (length**2 - seen)


def of_a_pair_of_the_source(model):
    """c of the a + b S + c S² that a step with S words of source takes: two words meet in the encoder alone."""

    def step(length):
        source, lengths, inputs = (jnp.full(shape, 4, jnp.int32) for shape in ((B, length), (B,), (B, T)))
        variables = jax.eval_shape(model.init, jax.random.key(0), source, lengths, inputs)
        return flops(jax.grad(lambda variables: model.apply(variables, source, lengths, inputs).sum()), variables)

    return (step(1) - 2 * step(2) + step(3)) / 2


@pytest.mark.parametrize(
    ("more", "sees"),
    [
        (
            {"encoder_pattern": "local:window=2,dilation=2,first=1", "pattern": "local:window=1"},
            lambda q, k: q < 1 or k < 1 or (abs(q - k) <= 4 and (q - k) % 2 == 0),
        ),
        ({"encoder_pattern": "strided:stride=3", "mixer": "gru"}, lambda q, k: abs(q - k) < 3 or (q - k) % 3 == 0),
        (
            {"encoder_mixer": "window", "reach": 2, "encoder_positions": "shaw", "encoder_family": "talking"},
            lambda q, k: abs(q - k) <= 2,
        ),
    ],
    ids=("local", "strided", "window"),
)
def test_pairs_that_an_encoder_may_not_see_are_not_counted_either(more, sees):
    narrow, length = build("transformer_small", encoder_layers=1, **more), 9
    whole = build("transformer_small", **{name: value for name, value in more.items() if "encoder" not in name})
    unseen = sum(not sees(q, k) for q in range(length) for k in range(length))
    of_the_decoder = unseen_flops(whole, B, length)
    assert unseen_flops(narrow, B, length) - of_the_decoder == unseen * of_a_pair_of_the_source(narrow)


def test_what_lies_outside_of_a_window_is_not_counted_either():
    seen = sum(1 for q in range(S) for k in range(q + 1) if q - k <= 2)
    by_pair = unseen_flops(language_model(), B, S) / (S * (S - 1) / 2)
    assert unseen_flops(language_model(mixer="window", reach=2), B, S) == by_pair * (S**2 - seen)
    assert unseen_flops(language_model(mixer="window", reach=S), B, S) == by_pair * S * (S - 1) / 2


@pytest.mark.parametrize(
    ("more", "by_token", "by_text"),
    [
        ({}, 2 * 32, 0),
        ({"kv_heads": 1}, 2 * 8, 0),
        ({"mixer": "latent:rank=6,rotary=2"}, 8, 0),
        ({"mixer": "linear"}, 0, 4 * 8 * 9),
        ({"mixer": "delta"}, 0, 4 * 8 * 8),
        ({"mixer": "convolution", "reach": 3}, 0, 3 * 32),
        ({"mixer": "gru"}, 0, 32),
    ],
)
def test_a_cache_holds_so_many_numbers_of_each_token_or_of_a_text_of_any_length(more, by_token, by_text):
    layers, size = 2, 4  # of float32
    assert held_bytes(language_model(**more)) == (layers * size * by_token, layers * size * by_text)
