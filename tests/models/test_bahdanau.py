"""Bahdanau's model: its equations in a float64 loop, its cache, its indifference to padding and batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.models.bahdanau import Bahdanau
from attention_jax.ops.dropout import Dropout

SHAPE = {"source_vocabulary": 11, "target_vocabulary": 13, "embedding": 6, "hidden": 8, "cell": "gru"}
KINDS = {
    "book": {"layers": 2, "bidirectional": False, "output": "state"},
    "paper": {"layers": 1, "bidirectional": True, "output": "deep"},
    "both": {"layers": 2, "bidirectional": True, "output": "deep"},
}
SOURCE = jnp.array([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0], [2, 0, 0, 0, 0]])
LENGTHS = jnp.array([5, 3, 1])
INPUTS = jnp.array([[1, 4, 5, 6], [1, 7, 8, 2], [1, 9, 0, 0]])


@pytest.fixture(params=KINDS, scope="module")
def model(request):
    model = Bahdanau(**SHAPE, **KINDS[request.param], dropout_sites=("embeddings", "layers", "attention", "output"))
    variables = model.init(jax.random.key(0), SOURCE, LENGTHS, INPUTS)
    noise = iter(jax.random.split(jax.random.key(1), 100))  # biases that start at zero would hide mistakes
    variables = jax.tree.map(lambda a: a + 0.3 * jax.random.normal(next(noise), a.shape), variables)
    return model, variables


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_oracle(x, h, p):
    r_i, z_i, n_i = np.split(x @ p["w_i"] + p["bias"], 3)
    r_h, z_h, n_h = np.split(h @ p["w_h"], 3)
    r, z = sigmoid(r_i + r_h), sigmoid(z_i + z_h)
    return (1 - z) * np.tanh(n_i + r * (n_h + p["candidate_bias"])) + z * h


def oracle(model, variables, source, inputs):
    """One sentence without padding, one number at a time in float64: logits and attention weights."""
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), variables["params"])
    x = p["source_embedding"]["embedding"][source]
    finals = []
    for layer in range(model.layers):
        runs = []
        for direction in ("forward", "backward")[: 2 if model.bidirectional else 1]:
            h, states = np.zeros(model.hidden), []
            for vector in x if direction == "forward" else x[::-1]:
                h = gru_oracle(vector, h, p["encoder"][f"layer_{layer}_{direction}"])
                states.append(h)
            runs.append((states if direction == "forward" else states[::-1], h))
        x = np.stack([np.concatenate(both) for both in zip(*(states for states, _ in runs), strict=True)])
        finals.append(np.concatenate([h for _, h in runs]))
    if model.bidirectional:
        finals = [np.tanh(h @ p[f"bridge_{i}"]["kernel"] + p[f"bridge_{i}"]["bias"]) for i, h in enumerate(finals)]
    states, logits, weights = finals, [], []
    for word in p["target_embedding"]["embedding"][inputs]:
        e = np.array([np.tanh(states[-1] @ p["w_q"] + key @ p["w_k"]) @ p["w_v"] for key in x])
        alpha = np.exp(e) / np.exp(e).sum()
        context = alpha @ x
        below, states = np.concatenate([word, context]), list(states)
        for layer in range(model.layers):
            below = states[layer] = gru_oracle(below, states[layer], p[f"decoder_{layer}"])
        top = below
        if model.output == "deep":
            t = np.concatenate([top, context, word]) @ p["readout"]["kernel"] + p["readout"]["bias"]
            top = np.maximum(*np.split(t, 2))
        logits.append(top @ p["logits"]["kernel"] + p["logits"]["bias"])
        weights.append(alpha)
    return np.stack(logits), np.stack(weights)


def decode(model, variables, source=SOURCE, lengths=LENGTHS, inputs=INPUTS, **kwargs):
    memory = model.apply(variables, source, lengths, method="encode")
    return model.apply(variables, memory, inputs, method="decode", **kwargs)


def test_the_model_is_its_equations(model):
    logits, weights = decode(*model)
    for row, length in enumerate(LENGTHS):
        expected = oracle(*model, np.asarray(SOURCE[row, :length]), np.asarray(INPUTS[row]))
        np.testing.assert_allclose(logits[row], expected[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(weights[row, :, :length], expected[1], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(weights[row, :, length:], 0)


def test_cached_steps_agree_with_teacher_forcing(model):
    module, variables = model
    expected, _ = decode(module, variables)
    memory = module.apply(variables, SOURCE, LENGTHS, method="encode")
    cache = module.apply(variables, memory, method="init_cache")
    for t in range(INPUTS.shape[1]):
        logits, cache = module.apply(variables, INPUTS[:, t], cache, method="step")
        np.testing.assert_allclose(logits, expected[:, t], rtol=1e-4, atol=1e-5)


def test_a_sentence_does_not_depend_on_its_padding_or_its_neighbours(model):
    whole, _ = decode(*model)
    alone, _ = decode(*model, SOURCE[1:2, :3], LENGTHS[1:2], INPUTS[1:2])
    padded, _ = decode(*model, jnp.pad(SOURCE, ((0, 0), (0, 4)), constant_values=9), LENGTHS, INPUTS)
    np.testing.assert_allclose(alone[0], whole[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(padded, whole, rtol=1e-4, atol=1e-5)


def test_the_decoder_cannot_see_the_future(model):
    module, variables = model
    memory = module.apply(variables, SOURCE, LENGTHS, method="encode")

    def logits_of_step_two(table):
        edited = {"params": {**variables["params"], "target_embedding": {"embedding": table}}}
        return module.apply(edited, memory, jnp.array([[1, 4, 5, 6]] * 3), method="decode")[0][:, 1].sum()

    gradient = jax.grad(logits_of_step_two)(variables["params"]["target_embedding"]["embedding"])
    np.testing.assert_array_equal(gradient[jnp.array([5, 6])], 0)
    assert gradient[4].any()


def test_a_population_is_a_vmap_over_keys(model):
    module, _ = model
    keys = jax.random.split(jax.random.key(0), 3)
    population = jax.vmap(lambda key: module.init(key, SOURCE, LENGTHS, INPUTS))(keys)
    alone = module.init(keys[1], SOURCE, LENGTHS, INPUTS)
    logits = jax.vmap(lambda v: module.apply(v, SOURCE, LENGTHS, INPUTS))(population)
    np.testing.assert_allclose(logits[1], module.apply(alone, SOURCE, LENGTHS, INPUTS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("site", ["embeddings", "layers", "attention", "output"])
def test_dropout_acts_at_each_named_site_and_at_no_other(site):
    module = Bahdanau(**SHAPE, **KINDS["both"], dropout_sites=(site,))
    variables = module.init(jax.random.key(0), SOURCE, LENGTHS, INPUTS)
    clean = module.apply(variables, SOURCE, LENGTHS, INPUTS)
    run = jax.jit(
        lambda rate, seed: module.apply(variables, SOURCE, LENGTHS, INPUTS, Dropout(jax.random.key(seed), rate))
    )
    np.testing.assert_allclose(run(0.0, 0), clean, rtol=1e-4, atol=1e-5)
    assert not np.allclose(run(0.5, 0), clean)
    assert not np.allclose(run(0.5, 0), run(0.5, 1))
    silent = Bahdanau(**SHAPE, **KINDS["both"], dropout_sites=())
    np.testing.assert_array_equal(
        silent.apply(variables, SOURCE, LENGTHS, INPUTS, Dropout(jax.random.key(0), 0.5)), clean
    )


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    module = Bahdanau(**SHAPE, **KINDS["both"], dropout_sites=(), dtype=jnp.bfloat16)
    variables = module.init(jax.random.key(0), SOURCE, LENGTHS, INPUTS)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    half = module.apply(variables, SOURCE, LENGTHS, INPUTS)
    assert half.dtype == jnp.bfloat16
    full = Bahdanau(**SHAPE, **KINDS["both"], dropout_sites=()).apply(variables, SOURCE, LENGTHS, INPUTS)
    np.testing.assert_allclose(half.astype(jnp.float32), full, atol=0.1)


def test_wrong_choices_are_refused_by_name():
    with pytest.raises(ValueError, match="output='wide': choose one of state, deep"):
        Bahdanau(**SHAPE, **{**KINDS["book"], "output": "wide"}, dropout_sites=())
    with pytest.raises(ValueError, match="dropout_sites='weights': choose one of embeddings, layers"):
        Bahdanau(**SHAPE, **KINDS["book"], dropout_sites=("weights",))
    with pytest.raises(TypeError, match="hiden"):
        Bahdanau(**SHAPE, **KINDS["book"], dropout_sites=(), hiden=3)
