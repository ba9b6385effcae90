"""Layers stacked and scanned, or rematerialized, are the layers that they were: numbers, gradients, caches, updates."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import drawn
from translators import INPUTS, LENGTHS, SOURCE, build, trained

from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.attention import Edit
from attention_jax.modules.mixers import BUILDERS as MIXERS
from attention_jax.modules.mixers import attends
from attention_jax.modules.normalization import NORMS
from attention_jax.modules.transformer import REMAT
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.positions import BUILDERS
from attention_jax.ops.stacking import layer_axes, stack_layers, unstack_layers
from attention_jax.training.hyper import settled, traced
from attention_jax.training.optimizer import OPTIMIZERS, Rule, new_moments, update
from configs.nmt import OPTIMIZER
from configs.nmt import get_config as nmt
from configs.positional_encoding import get_config as positional_encoding
from experiments import nmt as translation
from experiments import positional_encoding as extrapolation

TOKENS = jnp.array([[4, 5, 6, 7, 8, 3], [9, 2, 5, 5, 1, 3]])
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 2, 0]])
DROPOUT = Dropout(jax.random.key(5), 0.3)
LAYERS = 2
SIZES = {
    "vocabulary": 11, "layers": LAYERS, "width": 8, "heads": 2, "kv_heads": 1, "qk_norm": False, "feed_forward": 16,
    "activation": "gelu", "gated": False, "norm": "layer", "norm_first": True, "max_length": 12, "is_tied": True,
    "reach": 2, "dropout_sites": ("embeddings", "residual", "attention", "hidden"),
}  # fmt: skip
FAST = [("shaw:clip=2", "attention", "batch")]  # positions, mixer, norm: parameters of each layer's own
SLOW = [  # with norms in turn
    ("learned", "gru", "layer"),
    *((positions, "attention", norm) for positions, norm in zip(BUILDERS, itertools.cycle(NORMS), strict=False)),
    *(("none", mixer, norm) for mixer, norm in zip(MIXERS, itertools.cycle(NORMS), strict=False)),
]
assert_close = functools.partial(jax.tree.map, functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5))
assert_equal = functools.partial(jax.tree.map, np.testing.assert_array_equal)


@functools.cache
def language_model(positions="rotary", **more):
    """The model, and variables that are not at their start."""
    sites = SIZES["dropout_sites"] if attends(more.get("mixer", "attention")) else ("embeddings", "residual", "hidden")
    module = LanguageModel.of(**SIZES | {"positions": positions, "dropout_sites": sites} | more)
    return module, drawn(module.init, TOKENS)


def changed(module, **fields):
    return module.clone(layer=module.layer._replace(**fields))


def learnt(module, variables, *inputs):
    """The logits, the gradient of a loss in them, and the other collections after a step with dropout."""
    others = [name for name in variables if name != "params"]

    def loss(params):
        logits, after = module.apply({**variables, "params": params}, *inputs, dropout=DROPOUT, mutable=others)
        return jnp.mean(jnp.sin(logits)), (logits, dict(after))

    gradient, (logits, after) = jax.jit(jax.grad(loss, has_aux=True))(variables["params"])
    return logits, {"params": gradient, **after}


def assert_learns_alike(module, variables, *inputs):
    logits, after = learnt(module, variables, *inputs)
    found, stacked_after = learnt(changed(module, stacked=True), stack_layers(variables), *inputs)
    assert_close(found, logits)
    assert_close(stacked_after, stack_layers(after))


def cell(positions, mixer, norm):
    of_latents = {"kv_heads": 2} if mixer == "latent" else {}
    return language_model(positions, mixer=mixer, norm=norm, norm_first=norm != "batch", **of_latents)


@pytest.mark.parametrize(("positions", "mixer", "norm"), FAST)
def test_stacked_layers_learn_what_they_would_apart(positions, mixer, norm):
    assert_learns_alike(*cell(positions, mixer, norm), TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize(("positions", "mixer", "norm"), SLOW)
def test_stacked_layers_learn_what_they_would_apart_whatever_they_are(positions, mixer, norm):
    assert_learns_alike(*cell(positions, mixer, norm), TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "transformer, shaw and t5",
        "transformer, batch norm, learned and fire",
        "transformer, gru encoder, latent",
        "transformer, grouped",
    ],
)
def test_every_translators_stacked_layers_learn_what_they_would_apart(name):
    assert_learns_alike(*trained(name, encoder_layers=2, decoder_layers=2), SOURCE, LENGTHS, INPUTS)


@pytest.mark.parametrize("norm", NORMS)
def test_stacked_layers_compute_in_bfloat16_where_they_do_apart(norm):
    module, variables = language_model("t5", mixer="attention", norm=norm, dtype=jnp.bfloat16)
    forms = (module, variables), (changed(module, stacked=True), stack_layers(variables))
    shapes = [jax.eval_shape(functools.partial(learnt, *one), TOKENS)[0] for one in forms]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_one_seed_gives_one_start_and_each_form_is_made_of_the_other(norm):
    module, _ = language_model("shaw:clip=2", mixer="attention", norm=norm, norm_first=norm != "batch")
    start, stacked = (jax.jit(one.init)(jax.random.key(3), TOKENS) for one in (module, changed(module, stacked=True)))
    assert_equal(dict(stacked), stack_layers(start))
    assert_equal(unstack_layers(stacked), dict(start))
    assert all(len(leaf) == LAYERS for leaf in jax.tree.leaves(stacked["params"]["layers"]))
    assert not any(name.startswith("layer_") for collection in stacked.values() for name in collection)
    axes = {path[0].key: layer_axes(path) for path, _ in jax.tree_util.tree_leaves_with_path(stacked["params"])}
    assert [name for name, count in axes.items() if count] == ["layers"]


def test_the_layers_of_an_encoder_and_of_a_decoder_are_stacks_and_their_norms_are_not():
    module = build("transformer_small", encoder_layers=2, decoder_layers=3)
    start = jax.jit(module.init)(jax.random.key(3), SOURCE, LENGTHS, INPUTS)
    stacked = stack_layers(start)["params"]
    assert [len(jax.tree.leaves(stacked[name])[0]) for name in ("encoders", "decoders")] == [2, 3]
    assert {"encoder_norm", "decoder_norm"} < set(stacked)
    assert_equal(unstack_layers(stack_layers(start)), dict(start))
    shapes = jax.eval_shape(changed(module, stacked=True).init, jax.random.key(0), SOURCE, LENGTHS, INPUTS)
    assert jax.tree.map(jnp.shape, dict(shapes["params"])) == jax.tree.map(jnp.shape, stacked)


def test_edits_and_packed_texts_are_seen_by_stacked_layers_and_their_heads_are_shown():
    module, variables = language_model("t5", mixer="attention")
    gate, replaced = jnp.array([[1, 0], [0.5, 1]]), jnp.array([[True, False], [False, True]])
    outputs = jax.random.normal(jax.random.key(2), (LAYERS, 2, 2, 6, 4))
    edits = {"decoder": Edit(gate=gate, replaced=replaced, outputs=outputs)}
    expected, found = (
        jax.jit(lambda: one.apply(held, TOKENS, None, SEGMENTS, edits=edits, method="attention"))()  # noqa: B023
        for one, held in ((module, variables), (changed(module, stacked=True), stack_layers(variables)))
    )
    assert found["decoder"].weights.shape == (2, LAYERS, 2, 6, 6)
    assert_close(found, expected)


def test_a_translators_stacked_layers_show_the_heads_that_they_have_apart():
    module, variables = trained("transformer_book", encoder_layers=2, decoder_layers=3)
    edits = {"cross": Edit(gate=jnp.eye(4)[:3]), "encoder": Edit(gate=1 - jnp.eye(4)[:2])}
    arguments = (SOURCE, LENGTHS, INPUTS, edits)
    expected = jax.jit(lambda: module.apply(variables, *arguments, method="attention"))()
    stacked, held = changed(module, stacked=True), stack_layers(variables)
    assert_close(jax.jit(lambda: stacked.apply(held, *arguments, method="attention"))(), expected)
    cache = jax.eval_shape(lambda: _new_cache(stacked, held))
    assert {leaf.shape[0] for leaf in jax.tree.leaves(cache)} == {len(SOURCE)}


def _new_cache(module, variables):
    memory = module.apply(variables, SOURCE, LENGTHS, method="encode")
    return module.apply(variables, memory, INPUTS.shape[1], method="init_cache")


def test_a_cached_step_of_stacked_layers_says_what_the_whole_text_does():
    module, variables = language_model("shaw:clip=2", mixer="attention")
    module, variables = changed(module, stacked=True), stack_layers(variables)
    whole = jax.jit(module.apply)(variables, TOKENS)
    cache = module.apply(variables, jnp.tile(jnp.arange(6), (2, 1)), method="init_cache")
    read = jax.jit(lambda *asked: module.apply(variables, *asked, method="extend"))
    logits, cache = read(TOKENS[:, :4], jnp.array([4, 4]), cache)
    np.testing.assert_allclose(logits, whole[:, 3], rtol=2e-4, atol=2e-5)
    logits, cache = jax.jit(lambda *asked: module.apply(variables, *asked, method="step"))(TOKENS[:, 4], cache)
    np.testing.assert_allclose(logits, whole[:, 4], rtol=2e-4, atol=2e-5)


def test_a_translators_cached_step_of_stacked_layers_says_what_teacher_forcing_does():
    module, variables = trained("transformer_small")
    module, variables = changed(module, stacked=True), stack_layers(variables)
    whole = jax.jit(module.apply)(variables, SOURCE, LENGTHS, INPUTS)
    cache = jax.jit(lambda: _new_cache(module, variables))()
    step = jax.jit(lambda tokens, cache: module.apply(variables, tokens, cache, method="step"))
    for position in range(2):
        logits, cache = step(INPUTS[:, position], cache)
        np.testing.assert_allclose(logits, whole[:, position], rtol=2e-4, atol=2e-5)


def equations(experiment, config, **fields):
    """How many equations the training step of a config has."""
    owner = config.model.kwargs if "kwargs" in config.model else config.model
    owner.update(fields)
    description = experiment.describe(config)
    return str(jax.make_jaxpr(description.step)(*description.arguments)).count(" = ")


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_training_step_has_as_many_equations_at_eight_layers_as_at_two_where_they_are_stacked(optimizer):
    def count(layers, **fields):
        config = positional_encoding("smoke")
        config.optimizer.name = optimizer
        return equations(extrapolation, config, layers=layers, positions="t5", **fields)

    assert count(2, stacked=True) == count(8, stacked=True) < count(2)


def test_so_has_a_translators():
    sizes = ({"encoder_layers": 2, "decoder_layers": 2}, {"encoder_layers": 8, "decoder_layers": 5})
    make = functools.partial(nmt, "transformer_book,embedded")
    few, many = (equations(translation, make(), stacked=True, remat="dots", **one) for one in sizes)
    assert few == many


@pytest.mark.parametrize(
    ("stacked", "remat"),
    [
        (True, "full"),
        *(pytest.param(True, policy, marks=pytest.mark.slow) for policy in ("dots", "dots_no_batch")),
        *(pytest.param(False, policy, marks=pytest.mark.slow) for policy in ("full", "dots", "dots_no_batch")),
    ],
)
def test_what_is_computed_again_is_what_it_was(stacked, remat):
    module, variables = cell(*FAST[0])
    logits, after = learnt(module, variables, TOKENS)
    held = stack_layers(variables) if stacked else variables
    found, also = learnt(changed(module, stacked=stacked, remat=remat), held, TOKENS)
    assert_close(found, logits)
    assert_close(also, stack_layers(after) if stacked else after)


@pytest.mark.parametrize("stacked", [True, False])
def test_the_more_is_computed_again_the_less_is_saved(stacked):
    module, variables = language_model("t5", mixer="attention")
    params = stack_layers(variables)["params"] if stacked else variables["params"]

    def saved(remat):
        one = changed(module, stacked=stacked, remat=remat)
        forward = lambda params: one.apply({"params": params}, TOKENS, dropout=DROPOUT)  # noqa: E731
        shapes = jax.eval_shape(lambda params: jax.vjp(forward, params)[1], params)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))

    assert saved("full") < saved("dots_no_batch") < saved("dots") < saved("none")


def test_a_policy_that_there_is_not_is_refused_by_name():
    with pytest.raises(ValueError, match=f"remat='some': choose one of {', '.join(REMAT)}"):
        LanguageModel.of(**SIZES | {"positions": "none", "mixer": "attention", "remat": "some"})


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adamw"])
def test_an_optimizer_takes_each_layer_of_a_stack_where_it_would_take_it_alone(name, random):
    of_layer = {
        "matrix": (4, 3),
        "kernel": (2, 2, 3),
        "bias": (130,),
        "large": (128, 130),
        "encoding": {"table": (5, 3)},
    }
    shapes = {f"layer_{index}": of_layer for index in range(LAYERS)} | {"embedding": (5, 3), "norm": (3,)}
    draw = lambda shape: jnp.float32(random.normal(size=shape))  # noqa: E731
    params = jax.tree.map(draw, shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    section = OPTIMIZER | {"name": name, "schedule": "constant", "warmup_steps": 0, "weight_decay": 0.1}
    hyper = traced(settled(section | ({"least_scale": 0.05} if name == "adafactor" else {})))

    def run(params):
        moments = new_moments(params, name)
        for step in range(2):
            slope = jax.tree.map(lambda leaf: jnp.sin(3 * leaf) + leaf, params)
            params, moments, _ = update(slope, moments, params, step, hyper, Rule(name, "constant"))
        return params

    start = stack_layers({"params": params})["params"]
    found = jax.jit(run)(start)
    assert_close(found, stack_layers({"params": jax.jit(run)(params)})["params"])
    assert not np.allclose(found["layers"]["bias"], start["layers"]["bias"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_keeps_of_a_stacked_parameter_has_its_path_and_so_its_placement(name):
    params = {"layers": {"query": jnp.zeros((LAYERS, 4, 6))}, "embedding": jnp.zeros((5, 4))}
    state = jax.tree_util.tree_leaves_with_path(new_moments(params, name))
    paths = [jax.tree_util.keystr(path) for path, leaf in state if leaf.shape == (LAYERS, 4, 6)]
    assert paths
    assert all(path.endswith("['layers']['query']") for path in paths)


def test_a_population_of_stacked_models_has_members_first_and_then_layers():
    module = changed(language_model("t5", mixer="attention")[0], stacked=True)
    shapes = jax.eval_shape(jax.vmap(lambda key: module.init(key, TOKENS)), jax.random.split(jax.random.key(0), 2))
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(shapes["params"]["layers"])} == {(2, LAYERS)}
