"""Mixers with a state against float64 loops over heads and tokens, which are the papers' formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import drawn, sigmoid

from attention_jax.modules.linear import RULES, StateMixer
from attention_jax.modules.positions import PositionEncoding
from attention_jax.ops.encoding import Spec
from attention_jax.ops.features import orthogonal_directions
from attention_jax.ops.normalization import EPSILON
from attention_jax.ops.positions import make_encoding

LENGTH, WIDTH, HEADS, KV_HEADS, SIZE, COUNT = 11, 16, 4, 2, 4, 24
TEXTS = np.random.default_rng(1).normal(size=(2, LENGTH, WIDTH))
VALID = np.array([[True] * LENGTH, [False] + [True] * 7 + [False] * 3])
POSITIONS = np.cumsum(np.random.default_rng(2).integers(1, 4, VALID.shape), axis=1)
POSITIVE = {"features": "positive", "count": COUNT}
NORMED, GATED, TURNED = ("retention", "gated_linear", "delta"), ("retention", "gated_linear"), ("retention",)


def outputs_of(name, is_causal=True, **options):
    """What the layer says of the texts, and its parameters in float64."""
    record, sizes = make_encoding("rotary" if name in TURNED else "none"), Spec(WIDTH, HEADS, SIZE, 64, is_causal)
    layer = StateMixer(RULES[name](**options), WIDTH, HEADS, KV_HEADS, PositionEncoding(record, sizes, parent=None))
    given = jnp.asarray(TEXTS, jnp.float32), jnp.asarray(VALID), jnp.asarray(POSITIONS)
    variables = drawn(layer.init, *given)
    exact = jax.tree.map(lambda array: np.asarray(array, np.float64), variables["params"])
    return jax.jit(layer.apply)(variables, *given)[0], exact


def silu(x):
    return x * sigmoid(x)


def of_head(x, head):
    return x[..., head * SIZE : (head + 1) * SIZE]


def state_of(head):
    return head * KV_HEADS // HEADS


def made(p, x, head):
    """The queries of a head, and the keys and values of the state that it reads."""
    state = state_of(head)
    return of_head(x @ p["query"], head), of_head(x @ p["key"], state), of_head(x @ p["value"], state)


def elu_and_1(x):
    return np.where(x > 0, x + 1, np.exp(x))


def positive(x):
    """exp(wᵀx − ‖x‖²/2) / √m (Choromanski et al. 2021, lemma 1), of x / d^¼."""
    directions = np.asarray(orthogonal_directions(jax.random.key(0), COUNT, SIZE), np.float64)
    x = x / SIZE**0.25
    return np.array([np.exp(w @ x - x @ x / 2) for w in directions]) / np.sqrt(COUNT)


def linear(p, x, valid, positions, head, features=elu_and_1, is_causal=True):
    """Σ_j φ(q_i)ᵀφ(k_j) v_j / Σ_j φ(q_i)ᵀφ(k_j) (Katharopoulos et al. 2020, eq. 4), over j ≤ i where causal (eq. 8)."""
    query, key, value = made(p, x, head)
    outputs = np.zeros((LENGTH, SIZE))
    for i in range(LENGTH):
        read = [j for j in range(LENGTH) if valid[j] and (j <= i or not is_causal)]
        weights = np.array([features(query[i]) @ features(key[j]) for j in read])
        if read:
            outputs[i] = weights @ value[read] / weights.sum()
    return outputs


def decayed(query, key, value, valid, decays):
    """S_t = diag(a_t) S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t."""
    state, outputs = np.zeros((SIZE, SIZE)), np.zeros((LENGTH, SIZE))
    for t in range(LENGTH):
        if valid[t]:
            state = np.diag(decays[t]) @ state + np.outer(key[t], value[t])
        outputs[t] = state.T @ query[t]
    return outputs


def turned(x, positions):
    """Pairs of features as complex numbers, times e^{i n θ} with θ_j = 10000^(−2j/d)."""
    angles = positions[:, None] * 10000.0 ** (-2 * np.arange(SIZE // 2) / SIZE)
    pairs = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angles)
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


def retention(p, x, valid, positions, head):
    """Sun et al. 2023, eq. 5–6, with γ = 1 − 2^(−5 − h) for the state h (eq. 8)."""
    query, key, value = made(p, x, head)
    decay = 1 - 2.0 ** (-5 - state_of(head))
    return decayed(turned(query, positions), turned(key, positions), value, valid, np.full((LENGTH, SIZE), decay))


def gated_linear(p, x, valid, positions, head):
    """Yang et al. 2023, §4.4: α = σ(x W₁ W₂ + b)^(1/16)."""
    asked = x @ p["decay_in"] @ p["decay_out"] + p["decay_bias"]
    return decayed(*made(p, x, head), valid, of_head(sigmoid(asked) ** (1 / 16), state_of(head)))


def delta(p, x, valid, positions, head):
    """S_t = S_{t−1} (I − β_t k_t k_tᵀ) + β_t v_t k_tᵀ, o_t = S_t q_t, β = σ(x W) (Yang et al. 2024, §2.2, §3.3)."""
    query, key, value = made(p, x, head)
    query, key = (silu(part) / np.linalg.norm(silu(part), axis=-1, keepdims=True) for part in (query, key))
    rate = sigmoid(x @ p["rate"])[:, state_of(head)]
    state, outputs = np.zeros((SIZE, SIZE)), np.zeros((LENGTH, SIZE))
    for t in range(LENGTH):
        if valid[t]:
            state = state @ (np.eye(SIZE) - rate[t] * np.outer(key[t], key[t])) + rate[t] * np.outer(value[t], key[t])
        outputs[t] = state @ query[t]
    return outputs


ORACLES = {"linear": linear, "retention": retention, "gated_linear": gated_linear, "delta": delta}


def oracle(name, p, x, *given, **more):
    """What the layer says of one text: its heads, each normalised, side by side; a gate; W_o."""
    heads = [ORACLES[name](p, x, *given, head, **more) for head in range(HEADS)]
    if name in NORMED:
        heads = [found / np.sqrt(np.mean(found**2, axis=-1, keepdims=True) + EPSILON) * p["gain"] for found in heads]
    joined = np.concatenate(heads, axis=-1)
    return (joined * silu(x @ p["gate"]) if name in GATED else joined) @ p["out"]


def assert_is_the_formula(found, exact, name, **more):
    for text in range(len(TEXTS)):
        expected = oracle(name, exact, TEXTS[text], VALID[text], POSITIONS[text], **more)
        np.testing.assert_allclose(found[text], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_a_mixer_with_a_state_is_its_paper_s_formula(name):
    assert_is_the_formula(*outputs_of(name, block=4), name)


def test_positive_features_are_those_of_directions_that_are_drawn_once():
    assert_is_the_formula(*outputs_of("linear", **POSITIVE), "linear", features=positive)


def test_linear_attention_that_is_not_causal_reads_the_whole_text():
    assert_is_the_formula(*outputs_of("linear", is_causal=False), "linear", is_causal=False)
