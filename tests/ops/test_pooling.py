"""Attention pooling: the worked example, the identities that tie the subject together, refusals."""

import doctest
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops import pooling
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.kernels import KERNELS
from attention_jax.ops.masking import causal_mask, combine, valid_lens_mask
from attention_jax.ops.pooling import attend, attend_with_weights, kernel_regression
from attention_jax.ops.scoring import SCORES, additive, bilinear, concat, dot, gaussian, scaled_dot

TOKENS = np.array(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ],
    np.float32,
)


def test_the_worked_example_of_self_attention():
    context, weights = attend_with_weights(TOKENS, TOKENS, TOKENS, score=dot)
    np.testing.assert_allclose(weights[1], [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581], atol=5e-5)
    np.testing.assert_allclose(context[1], [0.4419, 0.6515, 0.5683], atol=5e-5)


def test_the_documented_example_runs_as_written():
    assert doctest.testmod(pooling).failed == 0
    assert doctest.testmod(pooling).attempted == 6


def triple(key=0, batch=(2,), queries=4, keys=6, size=3, values=2):
    keys_ = jax.random.split(jax.random.key(key), 3)
    shapes = (*batch, queries, size), (*batch, keys, size), (*batch, keys, values)
    return tuple(jax.random.normal(k, shape) for k, shape in zip(keys_, shapes, strict=True))


def assert_same(first, second, *arrays, tolerance=1e-4):
    """Two functions agree in value and in every gradient."""
    (value, *gradients), (other, *others) = (
        jax.jit(with_gradients, static_argnums=0)(f, *arrays) for f in (first, second)
    )
    np.testing.assert_allclose(value, other, rtol=tolerance, atol=tolerance)
    for one, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=10 * tolerance, atol=10 * tolerance)


def with_gradients(function, *arrays):
    """The values, and the gradients of what they weigh, by every array."""
    out, pull = jax.vjp(function, *arrays)
    return out, *pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))


@pytest.mark.parametrize("seed", range(3))
def test_gaussian_kernel_regression_is_softmax_attention_with_the_gaussian_score(seed):
    assert_same(
        lambda q, k, v, w: kernel_regression(q, k, v, kernel="gaussian", width=w),
        lambda q, k, v, w: attend(q, k, v, score=gaussian, score_params=(w,)),
        *triple(seed),
        jnp.float32(0.7),
    )


@pytest.mark.parametrize("seed", range(3))
def test_on_keys_of_equal_norm_gaussian_attention_is_dot_product_attention_at_temperature_width_squared(seed):
    query, key, value = triple(seed)
    key = key / jnp.linalg.norm(key, axis=-1, keepdims=True)
    width = 0.8
    np.testing.assert_allclose(
        attend(query, key, value, score=gaussian, score_params=(width,)),
        attend(query * (np.sqrt(3) / width**2), key, value, score=scaled_dot),
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_constant_kernel_is_average_pooling():
    assert_same(
        lambda q, k, v: kernel_regression(q, k, v, kernel="constant"),
        lambda q, k, v: jnp.broadcast_to(v.mean(-2, keepdims=True), (*q.shape[:-1], v.shape[-1])) + 0 * q[..., :1],
        *triple(),
    )


def test_a_width_toward_zero_is_nearest_neighbour_look_up():
    query, key, value = triple(batch=())
    nearest = jnp.argmin(jnp.sum((query[:, None] - key[None]) ** 2, -1), -1)
    looked_up = kernel_regression(query, key, value, kernel="gaussian", width=1e-3)
    np.testing.assert_allclose(looked_up, value[nearest], rtol=1e-6)


def test_concat_and_additive_attention_are_one():
    query, key, value = triple()
    w, w_v = SCORES["concat"].init(jax.random.key(3), 3, 3, 5)
    assert_same(
        lambda q, k, v, w: attend(q, k, v, score=concat, score_params=(w, w_v)),
        lambda q, k, v, w: attend(q, k, v, score=additive, score_params=(w[:3], w[3:], w_v)),
        query,
        key,
        value,
        w,
    )


def test_bilinear_attention_with_the_identity_is_dot_product_attention():
    assert_same(
        lambda q, k, v: attend(q, k, v, score=bilinear, score_params=(jnp.eye(3),)),
        lambda q, k, v: attend(q, k, v, score=dot),
        *triple(),
    )


def test_one_hot_weights_are_an_exact_look_up():
    value = triple(batch=())[2]
    query = jnp.eye(6)[jnp.array([4, 0, 5])]
    np.testing.assert_array_equal(
        attend(query, jnp.eye(6), value, score=dot, normalize="sum"), value[jnp.array([4, 0, 5])]
    )


def loop_attend(query, key, value, allowed, bias):
    """Scaled dot-product attention, one query at a time in float64."""
    out = np.zeros((*query.shape[:-1], value.shape[-1]))
    for index in np.ndindex(query.shape[:-1]):
        keys = np.flatnonzero(allowed[index])
        if len(keys):
            scores = np.array(
                [query[index] @ key[index[:-1]][j] / np.sqrt(query.shape[-1]) + bias[index][j] for j in keys]
            )
            weights = np.exp(scores - scores.max())
            out[index] = weights @ value[index[:-1]][keys] / weights.sum()
    return out


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3)])
def test_attend_is_its_definition_for_any_batch_axes_mask_and_bias(batch, random):
    query, key, value = triple(batch=batch)
    lengths = random.integers(0, 7, size=batch)
    mask = combine(causal_mask(4, 6, 1), valid_lens_mask(jnp.asarray(lengths), 6))
    bias = jax.random.normal(jax.random.key(5), (4, 6))
    allowed = np.zeros((*batch, 4, 6), bool)
    for index in np.ndindex(*batch, 4, 6):
        allowed[index] = index[-1] <= index[-2] + 1 and index[-1] < lengths[index[:-2]]
    q64, k64, v64, b64 = (np.asarray(a, np.float64) for a in (query, key, value, bias))
    expected = loop_attend(q64, k64, v64, allowed, np.broadcast_to(b64, (*batch, 4, 6)))
    for run in (attend, jax.jit(attend)):
        np.testing.assert_allclose(run(query, key, value, mask=mask, bias=bias), expected, rtol=1e-4, atol=1e-5)


def test_causal_attention_has_no_gradient_from_the_future():
    query, key, value = triple(batch=(), queries=6)
    gradient = jax.grad(lambda v: attend(query, key, v, mask=causal_mask(6, 6))[2].sum())(value)
    np.testing.assert_array_equal(gradient[3:], 0)
    assert gradient[:3].any()


def test_dropout_acts_on_the_weights_and_its_rate_may_be_traced():
    query, key, value = triple()

    @jax.jit
    def pooled(rate):
        return attend_with_weights(query, key, value, dropout=Dropout(jax.random.key(0), rate))

    np.testing.assert_allclose(pooled(0.0)[0], attend(query, key, value), rtol=1e-5)
    assert not np.allclose(pooled(0.5)[0], attend(query, key, value))
    np.testing.assert_allclose(pooled(0.5)[1].sum(-1), 1, rtol=1e-5)  # weights are returned undropped


def test_bfloat16_attention_is_close_to_float32():
    arrays = triple()
    half = attend(*(a.astype(jnp.bfloat16) for a in arrays))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), attend(*arrays), atol=0.05)


def test_misfits_are_refused_by_name_and_shape():
    query, key, value = triple(batch=())
    with pytest.raises(ValueError, match=r"key \(6, 3\) and value \(5, 2\) need the same size along axis -2"):
        attend(query, key, value[:5])
    with pytest.raises(ValueError, match=r"bias \(3, 6\) does not broadcast to the scores \(4, 6\)"):
        attend(query, key, value, bias=jnp.ones((3, 6)))
    with pytest.raises(ValueError, match=r"value has shape \(6,\), needs at least two axes"):
        attend(query, key, value[:, 0])
    with pytest.raises(ValueError, match=r"value's batch axes \(3,\) does not broadcast to the weights' batch axes"):
        attend(query, key, jnp.ones((3, 6, 2)))
    with pytest.raises(ValueError, match=r"query \(4, 3\) and width \(2,\) need the same size"):
        kernel_regression(query, key, value, width=jnp.ones(2))
    with pytest.raises(ValueError, match="normalize='softmin': choose one of softmax, sum"):
        attend(query, key, value, normalize="softmin")
    with pytest.raises(
        ValueError, match="normalize='sum': needs weights of 0 or more, and score='dot' may be negative"
    ):
        attend(query, key, value, score="dot", normalize="sum")
    with pytest.raises(ValueError, match=r"width=-1.0: needs a number more than 0"):
        kernel_regression(query, key, value, width=-1.0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_with_no_neighbour_gets_a_stated_answer_with_a_finite_gradient(kernel):
    query, key, value = jnp.array([[100.0]]), jnp.zeros((4, 1)), jnp.arange(4.0)[:, None]
    for empty, expected in (("mean", 1.5), ("zeros", 0.0)):
        answer = kernel_regression(query, key, value, kernel=kernel, empty=empty)
        assert float(answer[0, 0]) == pytest.approx(1.5 if kernel in ("gaussian", "constant") else expected)
    gradient = jax.grad(lambda w: kernel_regression(query, key, value, kernel=kernel, width=w).sum())(1.0)
    assert np.isfinite(gradient)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_regression_in_blocks_of_queries_is_that_of_all_at_once(monkeypatch, kernel):
    draw = np.random.default_rng(0)
    query, key, value = (jnp.asarray(draw.normal(size=(3, n, 2)), jnp.float32) for n in (11, 7, 7))
    masks = (None, causal_mask(11, 7), jnp.asarray(draw.random((3, 11, 7)) < 0.5))

    def estimates(*arrays):
        regressions = [functools.partial(kernel_regression, kernel=kernel, mask=mask) for mask in masks]
        return [with_gradients(regression, *arrays) for regression in regressions]

    at_once = jax.jit(estimates)(query, key, value)
    monkeypatch.setattr(pooling, "PAIRS", 4 * 7)
    found = jax.jit(lambda *arrays: estimates(*arrays))(query, key, value)  # another function is traced again
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, at_once)


def test_second_derivatives_of_a_gaussian_estimate_are_right_where_a_query_lies_on_a_key():
    key, value = jnp.array([[0.0, 0.0], [1.0, 1.0]]), jnp.array([[0.0], [1.0]])
    share = 1 / (1 + np.e)  # of the second key: the logistic function of x₁ + x₂ − 1
    expected = np.full((2, 2), share * (1 - share) * (1 - 2 * share))
    for estimate in (kernel_regression, functools.partial(attend, score="gaussian")):
        found = jax.jit(jax.hessian(lambda x: estimate(x[None], key, value)[0, 0]))(jnp.zeros(2))  # noqa: B023
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_mask_of_other_sizes_is_refused_however_many_pairs_there_are(monkeypatch):
    query, key = (jnp.linspace(0, 1, n)[:, None] for n in (9, 5))
    for pairs in (pooling.PAIRS, 16):
        monkeypatch.setattr(pooling, "PAIRS", pairs)
        for mask in (causal_mask(9, 7), jnp.ones((9, 3), bool), jnp.ones((4, 5), bool)):
            with pytest.raises(ValueError, match="mask .* does not broadcast"):
                kernel_regression(query, key, key, mask=mask)


def test_whole_numbers_as_values_are_averaged_as_numbers():
    query, key, value = jnp.zeros((1, 2)), jnp.zeros((2, 2)), jnp.array([[1], [2]])
    assert float(attend(query, key, value)[0, 0]) == float(kernel_regression(query, key, value)[0, 0]) == 1.5


def test_the_gradient_of_a_width_loses_little_to_the_rounding_of_many_neighbours():
    draw, width = np.random.default_rng(0), 2.0**-6
    query, key = (draw.uniform(0, 5, (n, 1)).astype(np.float32) for n in (100, 50_000))
    value = np.sin(key)
    squares = jax.jit(jax.grad(lambda w: jnp.sum(jnp.square(kernel_regression(query, key, value, width=w)))))
    squared = (query.astype(float) - key.astype(float).T) ** 2
    weights = np.exp(-squared / (2 * width**2))
    change, total = weights * squared / width**3, weights.sum(-1, keepdims=True)
    mean = weights @ value.astype(float) / total
    expected = np.sum(2 * mean * (change @ value - mean * change.sum(-1, keepdims=True)) / total)
    assert float(squares(width)) == pytest.approx(expected, rel=2e-4)


def test_kernel_regression_of_many_pairs_holds_few_of_them():
    points, estimate = jax.ShapeDtypeStruct((50_000, 1), jnp.float32), functools.partial(kernel_regression, width=0.1)
    memory = jax.jit(estimate).lower(points, points, points).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 64e6  # all pairs are 10 GB
