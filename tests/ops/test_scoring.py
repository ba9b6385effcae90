"""Every score against a float64 loop, its parameters' shapes, its precision and its refusals."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attention_jax.ops import naming
from attention_jax.ops.kernels import KERNELS, kernel_weights
from attention_jax.ops.masking import masked_normalize, masked_softmax
from attention_jax.ops.scoring import (
    SCORES,
    additive,
    bilinear,
    concat,
    cosine,
    dot,
    gaussian,
    l2,
    laplacian,
    location,
    make_score,
    scaled_dot,
)

DQ, DK, HIDDEN = 4, 6, 5
ORACLES = {
    "dot": lambda q, k: q @ k,
    "scaled_dot": lambda q, k: q @ k / np.sqrt(len(q)),
    "bilinear": lambda q, k, m: q @ m @ k,
    "additive": lambda q, k, w_q, w_k, w_v: np.tanh(q @ w_q + k @ w_k) @ w_v,
    "concat": lambda q, k, w, w_v: np.tanh(np.concatenate([q, k]) @ w) @ w_v,
    "gaussian": lambda q, k: -np.sum((q - k) ** 2) / 2,
    "kernel": lambda q, k: np.exp(-np.sum((q - k) ** 2) / 2),
    "l2": lambda q, k: -np.sum((q - k) ** 2) / np.sqrt(len(q)),
    "laplacian": lambda q, k: -np.sum(np.abs(q - k)),
    "cosine": lambda q, k: q @ k / (np.linalg.norm(q) * np.linalg.norm(k)),
    "zero": lambda q, k: 0.0,
}
TWO_SIZES = {"bilinear", "additive", "concat"}
PAIRWISE = [name for name in SCORES if name != "location"]  # which looks at a key's position


def inputs(name, batch=(2, 3), dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(1), 3)
    key_size = DK if name in TWO_SIZES else DQ
    query = jax.random.normal(keys[0], (*batch, 5, DQ), dtype)
    key = jax.random.normal(keys[1], (*batch, 7, key_size), dtype)
    return query, key, SCORES[name].init(keys[2], DQ, key_size, HIDDEN, dtype)


@pytest.mark.parametrize("name", PAIRWISE)
def test_a_score_is_its_formula_pair_by_pair(name):
    query, key, params = inputs(name)
    scores = SCORES[name].apply(query, key, *params)
    assert scores.shape == (2, 3, 5, 7)
    q64, k64, params64 = (jax.tree.map(lambda a: np.asarray(a, np.float64), x) for x in (query, key, params))
    expected = [
        [[[ORACLES[name](q, k, *params64) for k in ks] for q in qs] for qs, ks in zip(*pair, strict=True)]
        for pair in zip(q64, k64, strict=True)
    ]
    np.testing.assert_allclose(scores, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", PAIRWISE)
def test_a_score_agrees_under_jit_vmap_and_any_number_of_batch_axes(name):
    query, key, params = inputs(name)
    score = SCORES[name].apply
    whole = score(query, key, *params)
    np.testing.assert_allclose(jax.jit(score)(query, key, *params), whole, rtol=1e-5, atol=1e-5)
    mapped = jax.jit(jax.vmap(lambda q, k: score(q, k, *params)))(query, key)
    np.testing.assert_allclose(mapped, whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(score(query[1, 2], key[1, 2], *params), whole[1, 2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PAIRWISE)
def test_gradients_agree_with_finite_differences(name):
    query, key, params = inputs(name, batch=())
    check_grads(jax.jit(SCORES[name].apply), (query, key, *params), order=1, modes=["rev"], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", PAIRWISE)
def test_bfloat16_inputs_accumulate_in_float32(name):
    query, key, params = inputs(name, dtype=jnp.bfloat16)
    scores = SCORES[name].apply(query, key, *params)
    assert scores.dtype == jnp.float32
    exact = SCORES[name].apply(*(jax.tree.map(lambda a: a.astype(jnp.float32), x) for x in (query, key)), *params)
    np.testing.assert_allclose(scores, exact, rtol=0.05, atol=0.1)


def test_concat_is_additive_with_its_matrix_split():
    query, key, (w, w_v) = inputs("concat")
    np.testing.assert_allclose(concat(query, key, w, w_v), additive(query, key, w[:DQ], w[DQ:], w_v), rtol=1e-6)


def test_bilinear_with_the_identity_is_dot():
    query, key, _ = inputs("dot")
    np.testing.assert_allclose(bilinear(query, key, jnp.eye(DQ)), dot(query, key), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "gaussian", "cosine"])
def test_bfloat16_loses_only_what_its_inputs_lost(name):
    keys = jax.random.split(jax.random.key(0), 2)
    query, key = (jax.random.normal(k, (16, 256), jnp.bfloat16) for k in keys)
    q64, k64 = (np.asarray(a, np.float64) for a in (query, key))
    expected = [[ORACLES[name](q, k) for k in k64] for q in q64]
    np.testing.assert_allclose(SCORES[name].apply(query, key), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PAIRWISE)
def test_a_masked_key_has_no_influence_whatever_it_holds(name):
    query, key, params = inputs(name, batch=())
    mask = jnp.arange(7)[None, :] < 4
    clean = masked_softmax(SCORES[name].apply(query, key, *params), mask)
    for poison in (1e5, jnp.nan):
        poisoned = masked_softmax(SCORES[name].apply(query, key.at[5].set(poison), *params), mask)
        np.testing.assert_array_equal(poisoned[:, :4], clean[:, :4])


def test_gaussian_forms_no_array_of_differences():
    jaxpr = jax.make_jaxpr(gaussian)(jnp.ones((32, 16)), jnp.ones((48, 16)))
    assert max(v.aval.size for e in jaxpr.jaxpr.eqns for v in e.outvars) <= 32 * 48


def test_cosine_of_whole_numbers_is_that_of_numbers():
    query, key = np.array([[1, 0], [2, 2]]), np.array([[3, 0], [0, 5]])
    np.testing.assert_allclose(cosine(query, key), [[1, 0], [0.5**0.5, 0.5**0.5]], atol=1e-6)


def test_cosine_of_a_zero_vector_is_zero_with_finite_gradients():
    query, key, _ = inputs("cosine")
    query = query.at[0].set(0)
    assert not cosine(query, key)[0].any()
    assert all(jnp.isfinite(g).all() for g in jax.grad(lambda q, k: cosine(q, k).sum(), argnums=(0, 1))(query, key))


@pytest.mark.parametrize("length", 10.0 ** np.arange(-36, 37, 6))
def test_cosine_and_its_gradients_are_right_at_vectors_of_any_length(length):
    key = jnp.array([[0.6, 0.8]])
    found, gradient = jax.value_and_grad(lambda q: cosine(q, key).sum())(jnp.array([[length, 0]]))
    np.testing.assert_allclose(found, 0.6, rtol=1e-6)
    np.testing.assert_allclose(gradient * length, [[0, 0.8]], atol=1e-6)


@pytest.mark.parametrize("score", [dot, scaled_dot, gaussian, l2, laplacian, cosine])
def test_unequal_sizes_are_refused_by_name_and_shape(score):
    with pytest.raises(ValueError, match=r"query \(2, 64\).*key \(3, 32\).*bilinear"):
        score(jnp.ones((2, 64)), jnp.ones((3, 32)))


def test_parameters_of_the_wrong_shape_are_refused_by_name_and_shape():
    query, key = jnp.ones((2, DQ)), jnp.ones((3, DK))
    with pytest.raises(ValueError, match=r"matrix has shape \(6, 4\), needs \(4, 6\).*query is \(2, 4\)"):
        bilinear(query, key, jnp.ones((DK, DQ)))
    with pytest.raises(ValueError, match=r"w_k has shape \(4, 5\), needs \(6, 5\).*key is \(3, 6\)"):
        additive(query, key, jnp.ones((DQ, 5)), jnp.ones((DQ, 5)), jnp.ones(5))
    with pytest.raises(ValueError, match=r"w has shape \(9, 5\), needs \(10, 5\)"):
        concat(query, key, jnp.ones((9, 5)), jnp.ones(5))


def test_a_width_or_temperature_is_one_number():
    with pytest.raises(ValueError, match=r"width has shape \(3,\), needs \(\)"):
        gaussian(jnp.ones((2, 4)), jnp.ones((3, 4)), jnp.ones(3))
    with pytest.raises(ValueError, match=r"temperature has shape \(3,\), needs \(\)"):
        cosine(jnp.ones((2, 4)), jnp.ones((3, 4)), jnp.ones(3))


def test_batch_axes_that_do_not_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"query \(2, 5, 4\) and key \(3, 7, 4\) have batch axes"):
        dot(jnp.ones((2, 5, 4)), jnp.ones((3, 7, 4)))


@pytest.mark.parametrize("name", PAIRWISE)
def test_a_score_in_two_halves_is_the_score(name):
    query, key, params = inputs(name)
    halves = SCORES[name].projected(DQ, *params)
    q, k = (x if w is None else x @ w for x, w in ((query, halves.w_q), (key, halves.w_k)))
    expected = SCORES[name].apply(query, key, *params)
    np.testing.assert_allclose(halves.apply(q, k, *halves.params), expected, rtol=1e-4, atol=1e-5)


def test_the_location_score_is_a_product_with_the_query_alone():
    query, _, _ = inputs("dot")
    w = jax.random.normal(jax.random.key(5), (DQ, 9))
    np.testing.assert_allclose(location(query, w, 7), np.asarray(query) @ np.asarray(w)[:, :7], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"there are 10 keys, and w \(4, 9\) has room for 9: raise longest"):
        location(query, w, 10)


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_made_from_its_name(name):
    assert make_score(name).apply is SCORES[name].apply or name in ("kernel", "location")


@pytest.mark.parametrize(
    ("text", "plain", "factor"),
    [
        ("gaussian:width=2", "gaussian", 1 / 4),
        ("cosine:temperature=0.5", "cosine", 2),
        ("laplacian:width=2", "laplacian", 1 / 2),
    ],
)
def test_options_are_those_of_the_formula(text, plain, factor):
    query, key, _ = inputs(plain)
    np.testing.assert_allclose(
        make_score(text).apply(query, key), factor * SCORES[plain].apply(query, key), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ["gaussian", "laplacian", "cosine"])
def test_a_learned_scale_begins_where_it_is_told_and_is_more_than_0_whatever_is_learned(name):
    query, key, _ = inputs(name)
    option = "temperature" if name == "cosine" else "width"
    score, fixed = make_score(f"{name}:{option}=2,learned=True"), SCORES[name].apply
    (start,) = score.init(jax.random.key(0), DQ, DQ)
    np.testing.assert_allclose(score.apply(query, key, start), fixed(query, key, 2.0), rtol=1e-6)
    for learned in (-3.0, 1.5):
        expected = fixed(query, key, 2 * np.exp(learned))
        np.testing.assert_allclose(score.apply(query, key, jnp.float32(learned)), expected, rtol=1e-5)
    check_grads(lambda s: score.apply(query, key, s), (start,), order=1, modes=["rev"], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_as_a_score_and_divided_by_its_sum_is_kernel_regression(name):
    query, key, _ = inputs("kernel")
    found = masked_normalize(make_score(f"kernel:name={name},width=3").apply(query, key), empty="mean")
    np.testing.assert_allclose(found, kernel_weights(query, key, name, 3.0), rtol=1e-4, atol=1e-5)


def test_numbers_of_numpy_are_numbers():
    assert naming.whole("clip", np.int64(4)) == 4
    assert naming.more_than_0("base", np.float32(100)) == 100
    for value in (np.float32(np.inf), np.float32(np.nan), np.float32(0), np.bool_(True)):
        with pytest.raises(ValueError, match="needs a number more than 0"):
            naming.more_than_0("base", value)


def test_the_hidden_size_of_a_network_may_be_named():
    assert [p.shape for p in make_score("additive:hidden=3").init(jax.random.key(0), 4, 6, 5)] == [(4, 3), (6, 3), (3,)]
    assert [p.shape for p in make_score("concat:hidden=0").init(jax.random.key(0), 4, 6, 5)] == [(10, 5), (5,)]
    assert [p.shape for p in make_score("location:longest=9").init(jax.random.key(0), 4, 6, 5)] == [(4, 9)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cos", "score='cos': choose one of dot, scaled_dot"),
        ("gaussian:sigma=2", "score='gaussian:sigma=2': has no option 'sigma'; its options are width, learned."),
        ("gaussian:width=0", "width=0: needs a number more than 0"),
        ("gaussian:width=wide", "width='wide': needs a number more than 0"),
        ("kernel:name=cauchy", "name='cauchy': choose one of gaussian, boxcar"),
        ("gaussian:width=1e400", "width=inf: needs a number more than 0, and finite"),
        (f"gaussian:width={10**400}", "needs a number more than 0, and finite"),
        ("gaussian:width=nan", "width='nan': needs a number more than 0"),
        ("gaussian:width=True", "width=True: needs a number more than 0"),
        ("cosine:learned=yes", "learned='yes': needs True or False"),
        ("gaussian:width=1,width=2", "'gaussian:width=1,width=2': gives width twice."),
        ("location:longest=0", "score='location:longest=0': longest=0: needs a whole number, 1 or more"),
        ("additive:hidden=-3", "score='additive:hidden=-3': hidden=-3: needs a whole number, 0 or more"),
        ("additive:hidden=2.5", "hidden=2.5: needs a whole number, 0 or more"),
        ("concat:hidden=abc", "score='concat:hidden=abc': hidden='abc': needs a whole number, 0 or more"),
        ("concat:hidden=True", "hidden=True: needs a whole number, 0 or more"),
    ],
)
def test_a_name_or_an_option_that_cannot_be_used_is_refused_when_the_score_is_made(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_score(text)
