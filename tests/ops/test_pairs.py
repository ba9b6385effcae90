"""Biases as elementwise functions of a pair of positions, as kernels need them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.encoding import Spec
from attention_jax.ops.positions import ENCODINGS

SPEC = Spec(width=12, heads=3, head_size=4, max_length=16, is_causal=True)
BIASED = [name for name, encoding in ENCODINGS.items() if encoding.bias is not None]
QUERIES, KEYS = [4, 0, 9, 15], [0, 3, 15]


@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_bias_by_pairs_is_the_bias(name, is_causal):
    encoding, spec = ENCODINGS[name], SPEC._replace(is_causal=is_causal)
    if encoding.pairs is None:
        assert "shaw" in name  # its bias reads the query
        return
    params = encoding.init(jax.random.key(0), spec)
    numbers, apply, which = encoding.pairs(params, spec.heads)
    query = jnp.zeros((1, spec.heads, len(QUERIES), spec.head_size))
    wanted = encoding.bias(params, query, jnp.array(QUERIES)[None], jnp.array(KEYS)[None])[0]
    for head in range(spec.heads):
        for row, query in enumerate(QUERIES):
            for column, key in enumerate(KEYS):
                found = apply(tuple(numbers[head]), jnp.array(query), jnp.array(key))
                np.testing.assert_allclose(found, wanted[head, row, column], rtol=1e-5, atol=1e-6)
                if which:
                    assert found == numbers[head, which(jnp.array(key - query))]
