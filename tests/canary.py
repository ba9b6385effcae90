"""Programs that faulty releases of jaxlib compute wrongly or not at all, beside NumPy in float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

SHAPES = ((3, 3), (2, 2), (5, 4))
ROWS = (1_000, 32_769, 40_000)
REDUCTIONS = {  # of y = W x, and its gradient with respect to y
    "sum of squares": (lambda y, numpy: numpy.sum(y**2, -1), lambda y: 2 * y),
    "sum of sizes": (lambda y, numpy: numpy.sum(numpy.abs(y), -1), np.sign),
    "mean": (lambda y, numpy: numpy.mean(y, -1), lambda y: np.full_like(y, 1 / y.shape[-1])),
    "maximum": (lambda y, numpy: numpy.max(y, -1), lambda y: y == y.max(-1, keepdims=True)),
}


def wrong_rows(shape, rows, name):
    """How many rows of a vmapped product's reduction are wrong, and how many of its gradient."""
    random = np.random.default_rng(0)
    matrix, x = (random.normal(size=size).astype(np.float32) for size in (shape, (rows, shape[1])))
    reduce, derivative = REDUCTIONS[name]
    forward = jax.vmap(lambda row: reduce(matrix @ row, jnp))
    found = jax.jit(forward)(x), jax.jit(jax.grad(lambda x: forward(x).sum()))(x)
    y = x.astype(np.float64) @ matrix.T
    right = reduce(y, np), derivative(y) @ matrix
    return [_differing(*pair) for pair in zip(found, right, strict=True)]


def _differing(found, right):
    is_close = np.isclose(found, right, rtol=1e-4, atol=1e-4).reshape(len(right), -1)
    return int(np.sum(~is_close.all(-1)))


def reduce_many_axes():
    """Reductions of arrays of seven and eight axes, of 1s, which end the process where the fusion is faulty."""
    eight = jax.jit(lambda x, y: jnp.log(jnp.sum(x[..., None, None, None, None, None] * y, axis=2)))
    np.testing.assert_allclose(eight(jnp.ones((10, 4, 6)), jnp.ones((10, 4, 6, 9, 9, 9, 9, 9))), np.log(6), rtol=1e-6)
    seven = jax.jit(lambda x: jnp.sum(x * x, axis=3))
    np.testing.assert_array_equal(seven(jnp.ones((3, 1, 2, 2, 8, 8, 8))), 2)


def check():
    """Raise where anything is wrong."""
    for case in itertools.product(SHAPES, ROWS, REDUCTIONS):
        assert wrong_rows(*case) == [0, 0], case
    reduce_many_axes()
