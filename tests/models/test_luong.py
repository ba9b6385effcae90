"""Luong's model is its equations, one number at a time in float64, for every score and span."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled, drawn, gru_oracle, sigmoid

from attention_jax.models.recurrent import RecurrentTranslator

KINDS = {
    "dot": {"score": "dot", "bidirectional": False},
    "general": {"score": "bilinear"},
    "concat": {"score": "concat", "input_feeding": False},
    "location": {"score": "location:longest=9"},
    "local-m": {"score": "bilinear", "span": "local_m"},
    "local-p": {"score": "concat", "span": "local_p"},
}
WITHOUT = {"attends": "never", "output": "deep", "input_feeding": False, "score": "additive"}
DEFAULTS = {
    "source_vocabulary": 11,
    "target_vocabulary": 13,
    "embedding": 6,
    "hidden": 8,
    "layers": 1,
    "cell": "gru",
    "bidirectional": True,
    "span": "global",
    "window": 2,
    "input_feeding": True,
    "attends": "after",
    "output": "attentional",
    "dropout_sites": (),
}
SOURCE = jnp.array([[4, 5, 6, 7, 8, 9, 2], [8, 9, 2, 0, 0, 0, 0]])
LENGTHS = jnp.array([7, 3])
INPUTS = jnp.array([[1, 4, 5, 6, 7, 8], [1, 7, 8, 2, 0, 0]])


@pytest.fixture(params=KINDS, scope="module")
def model(request):
    model = RecurrentTranslator(**DEFAULTS | KINDS[request.param])
    return model, drawn(model.init, SOURCE, LENGTHS, INPUTS)


def encoded(model, p, source):
    runs = []
    for direction in ("forward", "backward")[: 2 if model.bidirectional else 1]:
        h, states = np.zeros(model.hidden), []
        for word in source if direction == "forward" else source[::-1]:
            h = gru_oracle(p["source_embedding"]["embedding"][word], h, p["encoder"][f"layer_0_{direction}"])
            states.append(h)
        runs.append((states if direction == "forward" else states[::-1], h))
    memory = np.array([np.concatenate(both) for both in zip(*(states for states, _ in runs), strict=True)])
    final = np.concatenate([h for _, h in runs])
    if model.bidirectional:
        final = np.tanh(final @ p["bridge_0"]["kernel"] + p["bridge_0"]["bias"])
    return memory, final


def score(model, p, h, s, position):
    if model.score == "dot":
        return h @ s
    if model.score == "bilinear":
        return h @ p["matrix"] @ s
    if model.score == "concat":
        return np.tanh(np.concatenate([h, s]) @ p["w"]) @ p["w_v"]
    return h @ p["w"][:, position]


def aligned(model, p, h, memory, t):
    """The weights of one target word, by the paper's section 3.2 and one loop over source words."""
    centre = {"global": 0, "local_m": t}.get(model.span)
    if model.span == "local_p":
        centre = len(memory) * sigmoid(np.tanh(h @ p["w_p"]) @ p["v_p"])
    weights = np.zeros(len(memory))
    for position, s in enumerate(memory):
        if model.span == "global" or abs(position - centre) <= model.window:
            weights[position] = np.exp(score(model, p, h, s, position))
    if weights.sum() > 0:
        weights /= weights.sum()
    if model.span == "local_p":
        sigma = model.window / 2
        weights *= [np.exp(-((position - centre) ** 2) / (2 * sigma**2)) for position in range(len(memory))]
    return weights


def oracle(model, variables, source, inputs):
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), variables["params"])
    memory, h = encoded(model, p, source)
    attentional, logits, found = np.zeros(model.hidden), [], []
    for t, word in enumerate(inputs):
        x = p["target_embedding"]["embedding"][word]
        h = gru_oracle(np.concatenate([x, attentional]) if model.input_feeding else x, h, p["decoder_0"])
        weights = aligned(model, p, h, memory, t)
        attentional = np.tanh(np.concatenate([weights @ memory, h]) @ p["w_c"])
        logits.append(attentional @ p["logits"]["kernel"] + p["logits"]["bias"])
        found.append(weights)
    return np.stack(logits), np.stack(found)


def test_the_model_is_its_equations(model):
    module, variables = model
    logits = compiled(module)(variables, SOURCE, LENGTHS, INPUTS)
    weights = compiled(module, "attention")(variables, SOURCE, LENGTHS, INPUTS)["cross"].weights
    for row, length in enumerate(LENGTHS):
        expected = oracle(*model, np.asarray(SOURCE[row, :length]), np.asarray(INPUTS[row]))
        np.testing.assert_allclose(logits[row], expected[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(weights[row, 0, 0, :, :length], expected[1], rtol=1e-3, atol=1e-5)
        np.testing.assert_array_equal(weights[row, ..., length:], 0)


def test_the_gradient_reaches_the_predicted_centre_and_is_that_of_finite_differences():
    module = RecurrentTranslator(**DEFAULTS | KINDS["local-p"])
    variables = drawn(module.init, SOURCE, LENGTHS, INPUTS)

    @jax.jit
    def total(v_p):
        params = {**variables["params"], "v_p": v_p}
        return jnp.sum(module.apply({"params": params}, SOURCE[:1], LENGTHS[:1], INPUTS[:1]) ** 2)

    v_p = variables["params"]["v_p"]
    gradient = jax.grad(total)(v_p)
    assert np.abs(gradient).max() > 1e-3
    step = 1e-2 * gradient / jnp.linalg.norm(gradient)
    slope = (total(v_p + step) - total(v_p - step)) / (2 * 1e-2)
    np.testing.assert_allclose(slope, jnp.linalg.norm(gradient), rtol=0.02)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"score": "multiply"}, "score='multiply': choose one of dot, scaled_dot, bilinear"),
        ({"score": "dot", "span": "near"}, "span='near': choose one of global, local_m, local_p"),
        ({"score": "dot", "output": "state"}, "output='state': attends='after' requires output='attentional'"),
        (
            {"score": "dot", "attends": "never", "output": "deep"},
            "input_feeding=True: requires attends='after', and attends='never'",
        ),
        (WITHOUT | {"score": "dot"}, "score='dot': attends='never' has no attention to read it. Set score='additive'"),
        (WITHOUT | {"normalize": "sigmoid"}, "normalize='sigmoid': attends='never' has no attention to read it"),
        (WITHOUT | {"span": "local_p"}, "span='local_p': attends='never' has no attention to read it"),
        (
            {"score": "dot", "normalize": "sum"},
            "normalize='sum': needs weights of 0 or more, and score='dot' may be negative",
        ),
        (
            {"score": "location", "backend": "chunked"},
            "backend='chunked': a score by the positions of keys needs all keys at once",
        ),
        ({"score": "bilinear", "window": 0}, "window=0: needs 1 or more"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(changed, message):
    with pytest.raises(ValueError, match=message):
        RecurrentTranslator(**DEFAULTS | changed)


def test_more_words_than_the_location_score_has_room_for_are_refused():
    module = RecurrentTranslator(**DEFAULTS | {"score": "location:longest=5"})
    with pytest.raises(ValueError, match=r"there are 7 keys, and w \(8, 5\) has room for 5"):
        jax.eval_shape(module.init, jax.random.key(0), SOURCE, LENGTHS, INPUTS)
