"""Layers that mix a sequence, against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.masking import window_mask
from attention_jax.ops.mixing import convolution, windowed_attention
from attention_jax.ops.pooling import attend


@pytest.mark.parametrize(("size", "dilation", "is_causal"), [(3, 1, False), (5, 2, False), (2, 3, True), (3, 1, True)])
def test_a_convolution_is_its_sum(random, size, dilation, is_causal):
    x, kernel = random.normal(size=(2, 9, 4)), random.normal(size=(size, 4, 3))
    expected = np.zeros((2, 9, 3))
    centre = size - 1 if is_causal else size // 2
    for i in range(9):
        for j in range(size):
            index = i + (j - centre) * dilation
            if 0 <= index < 9:
                expected[:, i] += x[:, index] @ kernel[j]
    found = jax.jit(convolution, static_argnames=("dilation", "is_causal"))(
        jnp.float32(x), jnp.float32(kernel), dilation=dilation, is_causal=is_causal
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_convolution_keeps_its_precision():
    x, kernel = jnp.ones((1, 4, 2), jnp.bfloat16), jnp.ones((3, 2, 2), jnp.bfloat16)
    assert convolution(x, kernel, is_causal=True).dtype == jnp.bfloat16


@pytest.mark.parametrize("reach", [1, 3, 20])
def test_windowed_attention_is_attention_under_a_window(random, reach):
    query, key, value = (jnp.float32(random.normal(size=(2, 9, 4))) for _ in range(3))
    expected = attend(query, key, value, mask=window_mask(9, 9, reach))
    np.testing.assert_allclose(windowed_attention(query, key, value, reach), expected, rtol=1e-4, atol=1e-5)


def test_a_text_without_tokens_attends_to_nothing():
    none = jnp.zeros((2, 0, 4))
    assert windowed_attention(none, none, none, 3).shape == attend(none, none, none).shape == (2, 0, 4)


def test_kernels_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ValueError, match="the kernel has size 4: needs an odd size"):
        convolution(jnp.zeros((5, 2)), jnp.zeros((4, 2, 2)))
    with pytest.raises(ValueError, match=r"x \(5, 2\) and kernel"):
        convolution(jnp.zeros((5, 2)), jnp.zeros((3, 4, 2)))
