"""Bahdanau's model is its equations, in a float64 loop; and so is the baseline without attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled, drawn, gru_oracle

from attention_jax.models.recurrent import RecurrentTranslator
from attention_jax.ops.dropout import Dropout

SHAPE = {
    "source_vocabulary": 11,
    "target_vocabulary": 13,
    "embedding": 6,
    "hidden": 8,
    "cell": "gru",
    "attends": "before",
    "input_feeding": False,
    "span": "global",
    "window": 1,
    "score": "additive",
}
KINDS = {
    "book": {"layers": 2, "bidirectional": False, "output": "state"},
    "paper": {"layers": 1, "bidirectional": True, "output": "deep"},
    "both": {"layers": 2, "bidirectional": True, "output": "deep"},
    "no attention": {"layers": 2, "bidirectional": True, "output": "deep", "attends": "never"},
}
SOURCE = jnp.array([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0], [2, 0, 0, 0, 0]])
LENGTHS = jnp.array([5, 3, 1])
INPUTS = jnp.array([[1, 4, 5, 6], [1, 7, 8, 2], [1, 9, 0, 0]])


@pytest.fixture(params=KINDS, scope="module")
def model(request):
    model = RecurrentTranslator(
        **SHAPE | KINDS[request.param] | {"dropout_sites": ("embeddings", "layers", "attention", "output")}
    )
    return model, drawn(model.init, SOURCE, LENGTHS, INPUTS)


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
    summary = finals[-1]
    if model.bidirectional:
        finals = [np.tanh(h @ p[f"bridge_{i}"]["kernel"] + p[f"bridge_{i}"]["bias"]) for i, h in enumerate(finals)]
    states, logits, weights = finals, [], []
    for word in p["target_embedding"]["embedding"][inputs]:
        alpha = None
        context = summary
        if model.attends == "before":
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
    return np.stack(logits), weights


def test_the_model_is_its_equations(model):
    module, variables = model
    logits = compiled(module)(variables, SOURCE, LENGTHS, INPUTS)
    found = compiled(module, "attention")(variables, SOURCE, LENGTHS, INPUTS)
    assert list(found) == (["cross"] if module.attends == "before" else [])
    for row, length in enumerate(LENGTHS):
        expected, weights = oracle(*model, np.asarray(SOURCE[row, :length]), np.asarray(INPUTS[row]))
        np.testing.assert_allclose(logits[row], expected, rtol=1e-4, atol=1e-4)
        if module.attends == "before":
            np.testing.assert_allclose(found["cross"].weights[row, 0, 0, :, :length], weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("site", ["embeddings", "layers", "attention", "output"])
def test_dropout_acts_at_each_named_site_and_at_no_other(site):
    module = RecurrentTranslator(**SHAPE, **KINDS["both"], dropout_sites=(site,))
    variables = drawn(module.init, SOURCE, LENGTHS, INPUTS)
    clean = compiled(module)(variables, SOURCE, LENGTHS, INPUTS)

    def run(rate, seed):
        return compiled(module)(variables, SOURCE, LENGTHS, INPUTS, Dropout(jax.random.key(seed), rate))

    np.testing.assert_allclose(run(0.0, 0), clean, rtol=1e-4, atol=1e-5)
    assert not np.allclose(run(0.5, 0), clean)
    assert not np.allclose(run(0.5, 0), run(0.5, 1))
    silent = RecurrentTranslator(**SHAPE, **KINDS["both"], dropout_sites=())
    found = compiled(silent)(variables, SOURCE, LENGTHS, INPUTS, Dropout(jax.random.key(0), 0.5))
    np.testing.assert_array_equal(found, clean)


def test_wrong_choices_are_refused_by_name():
    with pytest.raises(ValueError, match="output='wide': choose one of state, deep, attentional"):
        RecurrentTranslator(**SHAPE, **{**KINDS["book"], "output": "wide"}, dropout_sites=())
    with pytest.raises(ValueError, match="dropout_sites='weights': choose one of embeddings, layers"):
        RecurrentTranslator(**SHAPE, **KINDS["book"], dropout_sites=("weights",))
    with pytest.raises(TypeError, match="hiden"):
        RecurrentTranslator(**SHAPE, **KINDS["book"], dropout_sites=(), hiden=3)
