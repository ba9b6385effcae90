"""Every optimizer against its paper's loop in NumPy float64; its numbers are arguments; its copies are exact."""

import functools
import re
from fnmatch import fnmatch

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from translators import INPUTS, LENGTHS, NAMES, SOURCE, build

from attention_jax.models import TRANSLATORS
from attention_jax.models.in_context import InContextRegressor
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.transformer import Transformer
from attention_jax.modules.families import BUILDERS as FAMILIES
from attention_jax.modules.mixers import BUILDERS as MIXERS
from attention_jax.ops.normalizing import BUILDERS as NORMALIZERS
from attention_jax.ops.positions import BUILDERS, ENCODINGS
from attention_jax.ops.scoring import SCORES
from attention_jax.tasks.language_model.model import WIDTHS
from attention_jax.training.cost import flops
from attention_jax.training.hyper import settled, traced
from attention_jax.training.optimizer import OPTIMIZERS, Rule, WithMaster, is_hidden, new_moments, update
from configs import kernel_regression
from configs.nmt import MODELS, OPTIMIZER
from configs.positional_encoding import get_config

ADAM = Rule("adam", "constant")
DIFFERENT = [name for name in OPTIMIZERS if name != "adamw"]
OTHER = {  # numbers that are no default
    "b1": 0.8,
    "b2": 0.9,
    "eps": 1e-4,
    "momentum": 0.7,
    "decay_rate": 0.5,
    "clipping_threshold": 0.6,
    "least_scale": 0.05,
    "rms": 0.3,
}
SHAPES = {
    "layer": {"matrix": (4, 3), "kernel": (2, 2, 3), "bias": (3,)},
    "embedding": {"embedding": (5, 3)},
    "large": (128, 130),
}


@pytest.fixture
def params(random):
    return jax.tree.map(lambda shape: random.normal(size=shape), SHAPES, is_leaf=lambda leaf: isinstance(leaf, tuple))


def numbers_of(name, **changed):
    section = OPTIMIZER | {"name": name, "schedule": "constant", "warmup_steps": 0, "weight_decay": 0.1} | changed
    return settled({**section, "clip_norm": 20.0})


def gradient(params):
    """Of Σ (θ − 1)² (1 + i mod 3) / 2 over a parameter's indices i."""

    def one(leaf):
        return (leaf - 1) * (1 + np.arange(leaf.size).reshape(leaf.shape) % 3)

    return jax.tree.map(one, params)


def trained(name, params, hyper, steps, slope=gradient):
    """The parameters and the optimizer's state after some steps."""

    def step(number, state):
        params, moments = state
        return update(slope(params), moments, params, number, hyper, Rule(name, "constant"))[:2]

    return jax.lax.fori_loop(0, steps, step, (params, new_moments(params, name)))


def adam(g, theta, state, t, n):
    state["m"] = n["b1"] * state.get("m", 0) + (1 - n["b1"]) * g
    state["v"] = n["b2"] * state.get("v", 0) + (1 - n["b2"]) * g**2
    return state["m"] / (1 - n["b1"] ** t) / (np.sqrt(state["v"] / (1 - n["b2"] ** t)) + n["eps"])


def sgd(g, theta, state, t, n):
    state["m"] = n["momentum"] * state.get("m", 0) + g
    return state["m"]


def lion(g, theta, state, t, n):
    before = state.get("m", np.zeros_like(g))
    state["m"] = n["b2"] * before + (1 - n["b2"]) * g
    return np.sign(n["b1"] * before + (1 - n["b1"]) * g)


def adafactor(g, theta, state, t, n):
    beta, square = 1 - t ** -n["decay_rate"], g**2 + n["eps"]
    if g.ndim > 1 and min(g.shape) >= 128:
        state["r"] = beta * state.get("r", 0) + (1 - beta) * square.sum(1)
        state["c"] = beta * state.get("c", 0) + (1 - beta) * square.sum(0)
        v = np.outer(state["r"], state["c"]) / state["r"].sum()
    else:
        v = state["v"] = beta * state.get("v", 0) + (1 - beta) * square
    u = g / np.sqrt(v)
    u = u / max(1, np.sqrt(np.mean(u**2)) / n["clipping_threshold"])
    return u * max(n["least_scale"], np.sqrt(np.mean(theta**2))) if n["least_scale"] else u


def muon(g, theta, state, t, n):
    state["m"] = n["momentum"] * state.get("m", 0) + (1 - n["momentum"]) * g
    own = (1 - n["momentum"]) * g / (1 - n["momentum"] ** t)
    ahead = n["momentum"] * state["m"] / (1 - n["momentum"] ** (t + 1)) + own
    x = ahead.reshape(-1, g.shape[-1])
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (n["rms"] * np.sqrt(max(x.shape)) * x).reshape(g.shape)


def muon_or_adam(path, g, *rest):
    is_matrix = g.ndim > 1 and "embedding" not in jax.tree_util.keystr(path)
    return (muon if is_matrix else adam)(g, *rest)


LOOPS = {
    **{name: lambda path, *rest, one=one: one(*rest) for name, one in [("adam", adam), ("sgd", sgd), ("lion", lion)]},
    "adafactor": lambda path, *rest: adafactor(*rest),
    "muon": muon_or_adam,
}


def looped(name, params, n, steps):
    """θ ← θ − η (d + λ θ), d of the gradient clipped by its global norm; λ on matrices alone."""
    states = {}
    for t in range(1, steps + 1):
        gradients = gradient(params)
        norm = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(gradients)))
        scale = min(1, n["clip_norm"] / norm)

        def moved(path, theta, g, t=t, scale=scale):
            d = LOOPS[name](path, g * scale, theta, states.setdefault(jax.tree_util.keystr(path), {}), t, n)
            return theta - n["learning_rate"] * (d + n["weight_decay"] * theta * (theta.ndim > 1))

        params = jax.tree_util.tree_map_with_path(moved, params, gradients)
    return params


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("changed", [{}, OTHER], ids=["defaults", "others"])
def test_an_optimizer_takes_the_steps_of_its_papers_loop(name, changed, params):
    own = {key: value for key, value in changed.items() if key in OPTIMIZERS[name].numbers}
    n = numbers_of(name, learning_rate=0.03, **own)
    found, _ = trained(name, jax.tree.map(jnp.float32, params), traced(n), 5)
    expected = looped(name, params, n, 5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=3e-5), found, expected)
    assert not np.allclose(found["layer"]["bias"], params["layer"]["bias"])


@pytest.mark.parametrize("name", DIFFERENT)
def test_every_number_is_an_argument_that_counts_and_members_side_by_side_are_what_each_is_alone(name, params):
    start = {"layer": jax.tree.map(jnp.float32, params["layer"]), "embedding": params["embedding"]["embedding"]}
    start = jax.tree.map(jnp.float32, start)
    program = jax.jit(lambda hyper: trained(name, start, hyper, 6)[0])
    plain = program(traced(numbers_of(name, learning_rate=0.3)))
    others = {key: OTHER[key] for key in OPTIMIZERS[name].numbers} | {"learning_rate": 0.2, "weight_decay": 0.5}
    hypers = [traced(numbers_of(name, **{"learning_rate": 0.3, key: value})) for key, value in others.items()]
    alone = [program(hyper) for hyper in hypers]
    assert program._cache_size() == 1
    for key, one in zip(others, alone, strict=True):
        assert not all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(plain))), key
    together = jax.vmap(program)(jax.tree.map(lambda *leaves: jnp.stack(leaves), *hypers))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), together, stacked)


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_parameter_in_bfloat16_has_a_master_copy_that_goes_where_one_in_float32_does(name, params):
    push = jax.tree.map(lambda leaf: jnp.float32(np.sin(np.arange(leaf.size)).reshape(leaf.shape)), params["layer"])
    hyper = traced(numbers_of(name, learning_rate=1e-4))
    half = {**jax.tree.map(jnp.bfloat16, params["layer"]), "bias": jnp.ones(3)}
    full = jax.tree.map(jnp.float32, half)
    run = lambda start: trained(name, start, hyper, 30, lambda params: push)  # noqa: E731
    (found, moments), (expected, plain) = run(half), run(full)
    assert isinstance(moments, WithMaster)
    assert moments._fields == ("adam", "master")  # their names in checkpoints
    assert moments.master["bias"] is None
    jax.tree.map(np.testing.assert_array_equal, moments.adam, plain)
    for key in ("matrix", "kernel"):
        assert found[key].dtype == jnp.bfloat16
        np.testing.assert_array_equal(moments.master[key], expected[key])
        np.testing.assert_array_equal(found[key], expected[key].astype(jnp.bfloat16))
        assert np.all(expected[key] != full[key])


def test_adams_traced_numbers_give_the_bits_of_optaxs_with_constants(params):
    start, n = jax.tree.map(jnp.float32, params["layer"]), numbers_of("adam", weight_decay=0.0, clip_norm=1e9)
    constant = optax.scale_by_adam(b1=0.9, b2=jnp.float32(0.999), eps=1e-8)
    n["clip_norm"] = 1e9

    @jax.jit
    def with_constants(params, rate):
        def step(number, carry):
            params, state = carry
            d, state = constant.update(gradient(params), state)
            return jax.tree.map(lambda p, one: p - rate * one, params, d), state

        return jax.lax.fori_loop(0, 20, step, (params, constant.init(params)))

    program = jax.jit(lambda params, hyper: trained("adam", params, hyper, 20))
    found, expected = program(start, traced(n)), with_constants(start, jnp.float32(n["learning_rate"]))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert OPTIMIZERS["adamw"] == OPTIMIZERS["adam"]


@pytest.mark.parametrize("name", DIFFERENT)
def test_an_update_costs_no_matrix_products_but_muons_newton_schulz_steps(name, params):
    step = lambda start, hyper: trained(name, start, hyper, 1)  # noqa: E731
    products = 0
    if name == "muon":
        for m, n in ((3, 4), (3, 4), (128, 130)):  # the shorter side first
            products += 5 * (2 * m * n * m + 2 * m * m * m + 2 * m * m * n)
    assert flops(step, jax.tree.map(jnp.float32, params), traced(numbers_of(name))) == products


MATRICES = {  # of more axes than one, in whatever layer, by the optimizer that Muon gives them
    "muon": (
        *("*attention/query", "*attention/key", "*attention/value", "*attention/out"),
        *("feed_forward/hidden/kernel", "feed_forward/gate/kernel", "feed_forward/out/kernel"),
        *("w_i", "w_h", "bridge/kernel", "bridge_cell/kernel", "readout/kernel", "w_c", "w_key", "w_p"),
        *("mixer/kernel", "mixer/query", "mixer/key", "mixer/value", "mixer/out", "mixer/gate", "mixer/rate"),
        *("mixer/decay_in", "mixer/decay_out"),
        *("*attention/latent", "*attention/key_turned", "*attention/query_turned"),
        *("*attention/gate_by_*", "*attention/forget", "*attention/talk_*"),
    ),
    "adam": (
        *("embedding/embedding", "source_embedding/embedding", "target_embedding/embedding", "logits/kernel"),
        *("*encoding/table", "*encoding/keys", "*encoding/values", "*encoding/causal", "*encoding/both_ways"),
        *("*encoding/hidden", "*encoding/out", "*attention/position_table", "*attention/lambdas"),
    ),
}
OF_SCORES = {  # and the matrices of each score
    "bilinear": ("muon", ("matrix",)),
    "additive": ("muon", ("w_q", "w_k")),
    "concat": ("muon", ("w",)),
    "location": ("adam", ("w",)),
}


def require_parts(params, score="scaled_dot"):
    """Each matrix is where the tables say, by one line alone, and each vector is Adam's."""
    found = set()
    for path, hidden in jax.tree_util.tree_leaves_with_path(is_hidden(params)):
        leaf = functools.reduce(lambda tree, key: tree[key.key], path, params)
        named = "/".join(re.sub(r"_\d+", "", key.key) for key in path)
        optimizer, own = OF_SCORES.get(score, ("", ()))
        of_score = [optimizer] if named.rpartition("/")[2] in own and "encoding" not in named else []
        lines = [name for name, lines in MATRICES.items() for line in lines if fnmatch(f"/{named}", f"*/{line}")]
        expected = of_score + lines if leaf.ndim > 1 else ["adam"]
        assert expected == ["muon" if hidden else "adam"], (named, expected, hidden)
        found |= {named.rpartition("/")[2]}
    assert set(OF_SCORES.get(score, ("", ()))[1]) <= found


def shapes_of(module, *inputs):
    return jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"]


def language_model(**changed):
    own = {name: value for name, value in get_config("smoke").model.to_dict().items() if name not in WIDTHS}
    section = own | {"vocabulary": 11, "backend": "reference"} | changed
    return shapes_of(LanguageModel.of(**section), jnp.zeros((1, 3), jnp.int32))


def test_muon_has_neither_what_vectors_are_read_in_by_nor_what_answers_are_made_by():
    section = kernel_regression.get_config("in_context_smoke").model.to_dict()
    own = {name: value for name, value in section.items() if name not in WIDTHS} | {"outputs": 1, "max_length": 8}
    params = shapes_of(InContextRegressor.of(**own | {"backend": "reference"}), jnp.zeros((1, 3, 5)))
    hidden = is_hidden(params)
    assert not hidden["read_in"]["kernel"]
    assert not hidden["read_out"]["kernel"]
    assert hidden["layer_0"]["self_attention"]["query"]


@pytest.mark.parametrize("name", NAMES)
def test_muon_has_the_hidden_matrices_of_every_translator_and_adam_the_rest(name):
    module = build(name, layers=2, encoder_layers=1, decoder_layers=1)
    score = module.layer.score if isinstance(module, Transformer) else module.score * (module.attends != "never")
    if name != "transformer, gaussian and bilinear":  # of two scores: each is tested below
        require_parts(shapes_of(module, SOURCE, LENGTHS, INPUTS), score.partition(":")[0])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["bahdanau", "luong_general", "transformer_book"])
def test_muon_has_the_hidden_matrices_of_every_score(name, score):
    sizes = {"embedding": 6, "hidden": 8, "layers": 1, "encoder_layers": 1, "decoder_layers": 1}
    own = MODELS[name]["kwargs"] | {"score": score, "normalize": "sum" if score == "kernel" else "softmax"}
    own |= {key: size for key, size in sizes.items() if key in own} | {"backend": "reference"}
    make = TRANSLATORS[MODELS[name]["name"]]
    require_parts(shapes_of(make(source_vocabulary=11, target_vocabulary=13, **own), SOURCE, LENGTHS, INPUTS), score)


@pytest.mark.parametrize("changed", [
    *({"positions": name} for name in ENCODINGS),
    *({"normalize": name} for name in NORMALIZERS if name != "sum"),
    *({"mixer": name} for name in MIXERS if name != "attention"),
    *({"family": name} for name in FAMILIES),
    {"is_tied": False, "gated": True, "qk_norm": True, "norm": "rms"},
], ids=str)  # fmt: skip
def test_muon_has_the_hidden_matrices_of_every_language_model(changed):
    require_parts(language_model(**changed))


@pytest.mark.parametrize("name", [name for name in BUILDERS if "encoder" in ENCODINGS[name].kinds])
def test_muon_leaves_what_encodings_learn_to_adam_on_both_sides_of_the_text(name):
    module = build("transformer_book", encoder_layers=1, decoder_layers=1)
    require_parts(shapes_of(module.clone(encoder_positions=name), SOURCE, LENGTHS, INPUTS))


def test_clipping_and_weight_decay_follow_their_formula():
    params = {"w": jnp.ones((3, 1)), "b": jnp.ones(1), "lambdas": jnp.ones((4, 2))}
    gradients = {"w": jnp.full((3, 1), 3.0), "b": jnp.full(1, 3.0), "lambdas": jnp.zeros((4, 2))}
    numbers = traced({**numbers_of("adam", learning_rate=0.05), "clip_norm": 1.0})
    new, _, seen = update(gradients, new_moments(params, "adam"), params, jnp.int32(0), numbers, ADAM)
    assert float(seen["gradient_norm"]) == pytest.approx(6)
    np.testing.assert_allclose(new["b"], 1 - 0.05, rtol=1e-4)  # Adam's first step is the sign
    np.testing.assert_allclose(new["w"], 1 - 0.05 * 1.1, rtol=1e-4)  # and a matrix decays
    np.testing.assert_array_equal(new["lambdas"], 1)  # but no vectors that stand side by side


def stepped(params, steps, rate, gradient=1.0):
    """Parameters, and the optimizer's state, after steps whose gradient is the same."""
    numbers = traced({**numbers_of("adam", learning_rate=rate), "weight_decay": 0.0, "clip_norm": 10.0})
    step = jax.jit(lambda params, moments: update(gradients, moments, params, jnp.int32(0), numbers, ADAM)[:2])
    gradients, moments = jax.tree.map(lambda param: jnp.full_like(param, gradient), params), new_moments(params, "adam")
    for _ in range(steps):
        params, moments = step(params, moments)
    return params, moments


def test_small_changes_of_a_bfloat16_parameter_add_up_as_they_do_in_float32():
    half, full = (
        stepped({"w": jnp.ones((3, 2), kind), "b": jnp.ones(2)}, 100, 1e-3) for kind in ("bfloat16", "float32")
    )
    assert half[0]["w"].dtype == jnp.bfloat16
    assert half[0]["b"].dtype == jnp.float32
    np.testing.assert_allclose(full[0]["w"], 0.9, rtol=1e-4)
    np.testing.assert_array_equal(half[0]["w"], full[0]["w"].astype(jnp.bfloat16))
    np.testing.assert_array_equal(half[1].master["w"], full[0]["w"])
    assert half[1].master["b"] is None
    np.testing.assert_array_equal(half[0]["b"], full[0]["b"])


def test_float32_parameters_have_no_second_copy():
    params = {"w": jnp.ones((3, 1))}
    assert jax.tree.structure(new_moments(params, "adam")) == jax.tree.structure(optax.scale_by_adam().init(params))
