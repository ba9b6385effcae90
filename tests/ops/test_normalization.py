"""Normalisations against their definition in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.ops.normalization import EPSILON, batch_moments, batch_norm, layer_norm, rms_norm

X = jax.random.normal(jax.random.key(0), (2, 3, 5, 4)) * 3 + 1
GAIN, BIAS = jax.random.normal(jax.random.key(1), (2, 4))
EXACT, G, B = (np.asarray(a, np.float64) for a in (X, GAIN, BIAS))


def test_layer_norm_is_its_definition():
    expected = (EXACT - EXACT.mean(-1, keepdims=True)) / np.sqrt(EXACT.var(-1, keepdims=True) + EPSILON) * G + B
    np.testing.assert_allclose(layer_norm(X, GAIN, BIAS), expected, rtol=1e-4, atol=1e-5)


def test_rms_norm_is_its_definition():
    expected = EXACT / np.sqrt((EXACT**2).mean(-1, keepdims=True) + EPSILON) * G
    np.testing.assert_allclose(rms_norm(X, GAIN), expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_leaves_padding_out_of_its_moments():
    valid = jnp.arange(5)[None, None] < jnp.array([[5, 2, 1], [4, 3, 0]])[..., None]
    mean, variance = batch_moments(X, valid)
    tokens = EXACT[np.asarray(valid)]
    np.testing.assert_allclose(mean, tokens.mean(0), rtol=1e-4)
    np.testing.assert_allclose(variance, tokens.var(0), rtol=1e-4)
    expected = (EXACT - tokens.mean(0)) / np.sqrt(tokens.var(0) + EPSILON) * G + B
    np.testing.assert_allclose(batch_norm(X, mean, variance, GAIN, BIAS), expected, rtol=1e-3, atol=1e-4)


def test_bfloat16_is_normalised_in_float32():
    half = X.astype(jnp.bfloat16)
    for result in (layer_norm(half, GAIN, BIAS), rms_norm(half, GAIN)):
        assert result.dtype == jnp.bfloat16
    np.testing.assert_allclose(rms_norm(half * 1e4, GAIN).astype(jnp.float32), rms_norm(X, GAIN), atol=0.05)
