"""Blocks: their memory, their shapes, what they refuse when called, and who chooses them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import backends
from attention_jax.backends import Call
from attention_jax.modules.spec import AttentionSpec
from attention_jax.ops.attention import Relative
from attention_jax.ops.encoding import Spec
from attention_jax.ops.masking import causal_mask, valid_lens_mask
from attention_jax.ops.normalizing import NORMALIZERS
from attention_jax.ops.positions import make_encoding

LONG, SIZE = 16384, 64


def attended(backend, encoding, length, params, query, key, value):
    positions = jnp.arange(length)[None]
    record = make_encoding(encoding)
    relative = Relative(record.bias, None, record.mix, params, positions, positions)
    return backends.attend(backend, query, key, value, mask=causal_mask(length, length), relative=relative).values


def bytes_of(backend, encoding, length, has_gradient):
    """Bytes beside the arguments that the compiled program takes."""
    params = make_encoding(encoding).init(jax.random.key(0), Spec(SIZE, 1, SIZE, 32, True))
    shape = jax.ShapeDtypeStruct((1, 1, length, SIZE), jnp.float32)
    program = functools.partial(attended, backend, encoding, length)
    if has_gradient:
        program = jax.grad(lambda *a, run=program: jnp.sum(jnp.square(run(*a))), argnums=(0, 1, 2, 3))
    compiled = jax.jit(program).lower(params, shape, shape, shape).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("encoding", ["alibi", "t5"])
@pytest.mark.parametrize("has_gradient", [False, True])
def test_memory_at_16384_tokens_is_a_twentieth_of_that_of_all_weights_at_most(encoding, has_gradient):
    dense, blocks = (bytes_of(name, encoding, LONG, has_gradient) for name in ("reference", "chunked"))
    assert dense > LONG**2 * 4
    assert blocks <= 0.05 * dense


def test_memory_grows_with_the_length_and_not_with_its_square():
    short, long = (bytes_of("chunked", "alibi", length, True) for length in (4096, 16384))
    assert long < 5 * short


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (7, 3), (8, 8)])
def test_any_block_size_and_any_length_give_the_same(queries, keys):
    query, key, value = (jax.random.normal(jax.random.key(n), (2, 3, t, 4)) for n, t in enumerate((6, 7, 7)))
    mask = valid_lens_mask(jnp.array([7, 0]), 7)
    mask = jnp.broadcast_to(mask.block(jnp.arange(1), jnp.arange(7))[:, None], (2, 1, 1, 7))
    found, wanted = (
        backends.attend(name, query, key, value, mask=mask).values
        for name in (f"chunked:queries={queries},keys={keys}", "reference")
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[1], 0)  # nothing to attend to


STREAMED = [name for name, normalizer in NORMALIZERS.items() if normalizer.stream is not None]


def with_gradients(backend, normalize, mask):
    """(query, key, value) → the values, and the gradients of their sum."""
    score = "kernel:width=3" if normalize == "sum" else "scaled_dot"

    def read(*arrays):
        return backends.attend(backend, *arrays, mask=mask, normalize=normalize, score=score).values

    @jax.jit
    def both(*arrays):
        out, pull = jax.vjp(read, *arrays)
        return out, *pull(jnp.ones_like(out))

    return both


@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize(("queries", "keys"), [(0, 7), (6, 0)])
def test_without_keys_values_are_zeros_and_without_queries_there_are_none(queries, keys, normalize):
    shapes = [(2, t, 4) for t in (queries, keys, keys)]
    for backend in ("reference", "chunked")[: 1 + (normalize in STREAMED)]:
        values, *gradients = with_gradients(backend, normalize, None)(*map(jnp.ones, shapes))
        np.testing.assert_array_equal(values, np.zeros((2, queries, 4)))
        for gradient, shape in zip(gradients, shapes, strict=True):
            np.testing.assert_array_equal(gradient, np.zeros(shape))


@pytest.mark.parametrize("normalize", STREAMED)
def test_a_query_that_may_attend_to_nothing_gets_zeros_and_no_gradient(normalize):
    query, key, value = (jax.random.normal(jax.random.key(n), (2, t, 4)) for n, t in enumerate((6, 7, 7)))
    mask = valid_lens_mask(jnp.array([[7, 0, 3, 0, 1, 7], [0] * 6]), 7, per_query=True)
    is_empty = np.array([[0, 1, 0, 1, 0, 0], [1] * 6], bool)
    found, wanted = (
        with_gradients(backend, normalize, mask)(query, key, value)
        for backend in ("chunked:queries=4,keys=3", "reference")
    )
    for one, other in zip(found, wanted, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    for of_queries in found[:2]:  # the values, and the gradient of the queries
        np.testing.assert_array_equal(of_queries[is_empty], 0)
        assert np.any(of_queries[~is_empty])
    for of_keys in found[2:]:  # nobody reads the second text
        np.testing.assert_array_equal(of_keys[1], 0)


BACKENDS = ["reference", "chunked", "chunked:queries=2,keys=3", "ring", "gathered", "flex", "auto"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.bool_])
def test_values_may_be_whole_numbers_and_their_means_are_not(backend, dtype):
    query, key = (jax.random.normal(jax.random.key(n), (t, 4)) for n, t in enumerate((5, 7)))
    value = (jnp.arange(14).reshape(7, 2) % 3).astype(dtype)
    values = backends.attend(backend, query, key, value).values
    assert values.dtype == query.dtype
    scores = np.asarray(query, np.float64) @ np.asarray(key, np.float64).T / 2
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(values, weights @ np.asarray(value, np.float64), atol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "chunked:queries=2,keys=3"])
@pytest.mark.parametrize("distance", [1, 9.6, 11.7, 12.8])
def test_a_sum_of_weights_has_its_gradient_however_small_they_are(backend, distance):
    """Down to 10⁻³⁶: a Gaussian kernel divided by its sum is softmax of its logarithm."""
    query, value = jax.random.normal(jax.random.key(0), (5, 64)) / 64, jax.random.normal(jax.random.key(1), (7, 4))
    key = jax.random.normal(jax.random.key(2), (7, 64)) / 64 + distance / 8
    of = lambda **asked: jax.grad(  # noqa: E731
        lambda *arrays: jnp.sin(backends.attend(backend, *arrays, **asked).values).sum(), argnums=(0, 1, 2)
    )(query, key, value)
    for one, other in zip(
        of(score="kernel:name=gaussian", normalize="sum"), of(score="gaussian", normalize="softmax"), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "chunked:queries=2,keys=3"])
def test_weights_too_small_for_the_values_dtype_have_their_mean(backend):
    query, key, value = (jnp.array(rows, jnp.float16) for rows in ([[0]], [[6], [6.1]], [[1], [2]]))
    values = backends.attend(backend, query, key, value, score="kernel:name=gaussian", normalize="sum").values
    weights = np.exp(-(np.asarray(key, np.float64) ** 2) / 2)
    np.testing.assert_allclose(values[0, 0], np.sum(weights * value) / np.sum(weights), rtol=2e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sink_of_minus_infinity_is_none(backend):
    query, key, value = (jax.random.normal(jax.random.key(n), (t, 4)) for n, t in enumerate((5, 7, 7)))
    mask = valid_lens_mask(jnp.array([7, 3, 0, 1, 7]), 7, per_query=True)
    found = backends.attend(
        backend, query, key, value, mask=mask, normalize="sink", normalizer_params=(jnp.float32(-jnp.inf),)
    )
    np.testing.assert_allclose(
        found.values, backends.attend("reference", query, key, value, mask=mask).values, atol=1e-5
    )


def test_what_needs_all_weights_is_refused_when_asked():
    x = jnp.ones((2, 3, 4))
    for asked in ({"with_weights": True}, {"bias": jnp.zeros((3, 3))}):
        with pytest.raises(ValueError, match=r"backend='chunked': .*\. Choose backend='reference'"):
            backends.attend("chunked", x, x, x, **asked)


def test_a_mask_that_does_not_fit_is_refused():
    x = jnp.ones((2, 3, 4))
    with pytest.raises(ValueError, match=r"mask \(.*5\) does not broadcast"):
        backends.attend("chunked", x, x, x, mask=causal_mask(3, 5))


def test_auto_takes_blocks_for_long_texts_where_they_can_do_all_that_is_asked():
    soft, sparse = (AttentionSpec(normalize=name).attention() for name in ("softmax", "sparsemax"))
    assert backends.choose("auto", [soft], Call(keys=backends.LONG - 1)) == "reference"
    assert backends.choose("auto", [soft], Call(keys=backends.LONG)) == "chunked"
    assert backends.choose("auto", [soft, sparse], Call(keys=backends.LONG)) == "reference"
    assert backends.choose("chunked", [soft], Call(keys=8)) == "chunked"
    with pytest.raises(ValueError, match="this normalizer needs whole rows"):
        backends.choose("chunked", [sparse], Call(keys=8))


def test_no_mask_is_made_whole():
    length = 512
    x = jnp.ones((1, length, 8))
    jaxpr = jax.make_jaxpr(
        lambda x: backends.attend("chunked:queries=64,keys=64", x, x, x, mask=causal_mask(length, length)).values
    )(x)
    assert max(v.aval.size for e in jaxpr.jaxpr.eqns for v in e.outvars) <= length * 64
