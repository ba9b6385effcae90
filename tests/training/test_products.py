"""Gradients of matrices in the order that a CPU computes fast: the same numbers, by other products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from attention_jax.training.products import with_fast_gradients

ROWS, FEATURES, OUT = (5, 4), 3, 6
X = jnp.asarray(np.random.default_rng(0).normal(size=(*ROWS, FEATURES)), jnp.float32)
W = jnp.asarray(np.random.default_rng(1).normal(size=(FEATURES, OUT)), jnp.float32)
SQUARE = W[:, :FEATURES]


def scanned(w, x):
    return jax.lax.scan(lambda state, row: (jnp.tanh(state @ w + row), state.sum()), x[0], x)[0]


FUNCTIONS = {  # of a matrix and rows
    "a product": (lambda w, x: x @ w, W),
    "a square one": (lambda w, x: x @ w, SQUARE),
    "fewer outputs than inputs": (lambda w, x: jnp.concatenate([x, x, x], -1) @ w.reshape(-1, 2), W),
    "in a loop": (scanned, SQUARE),
    "computed again": (lambda w, x: jax.checkpoint(lambda w, x: jnp.sin(x @ w))(w, x), W),
    "in a branch": (lambda w, x: jax.lax.cond(x.sum() > 0, lambda: x @ w, lambda: -(x @ w)), W),
    "with custom derivatives": (lambda w, x: jax.nn.relu(x @ w), W),
    "of members side by side": (lambda w, x: jax.vmap(jnp.matmul)(jnp.stack([x, -x]), jnp.stack([w, 2 * w])), W),
    "of keys": (lambda w, x: (x @ w) @ jnp.swapaxes(x @ w, -1, -2), W),
}


def gradient(name):
    function, matrix = FUNCTIONS[name]
    return jax.grad(lambda w, x: jnp.sum(jnp.cos(function(w, x))), argnums=(0, 1)), (matrix, X)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_function_itself(name):
    function, arguments = gradient(name)
    expected, found = (jax.jit(each)(*arguments) for each in (function, with_fast_gradients(function)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_product_is_left_that_sums_over_the_first_axis_of_its_left_factor(name):
    function, arguments = gradient(name)
    assert slow_products(jax.make_jaxpr(function)(*arguments).jaxpr) > 0
    assert slow_products(jax.make_jaxpr(with_fast_gradients(function))(*arguments).jaxpr) == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_compiler_turns_no_product_back(name):
    function, arguments = gradient(name)
    text = jax.jit(with_fast_gradients(function)).lower(*arguments).compile().as_text()
    assert "dot(" in text
    assert "lhs_contracting_dims={0}" not in text


def test_a_gradient_is_that_of_float64():
    x, g = (np.random.default_rng(seed).normal(size=(50, 7, size)) for seed, size in ((0, 9), (1, 4)))
    _, transposed = jax.vjp(lambda w: jnp.asarray(x, jnp.float32) @ w, jnp.zeros((9, 4)))
    (found,) = with_fast_gradients(transposed)(jnp.asarray(g, jnp.float32))
    np.testing.assert_allclose(found, np.einsum("abi,abo->io", x, g), rtol=1e-4, atol=1e-4)


def test_a_sum_over_one_row_is_left_as_it_is():
    outer = lambda x, g: jnp.einsum("brd,brf->bdf", x, g)  # noqa: E731
    one = X[:, :1]
    assert "optimization_barrier" not in str(jax.make_jaxpr(with_fast_gradients(outer))(one, one))
    assert "optimization_barrier" in str(jax.make_jaxpr(with_fast_gradients(outer))(X, X))


@pytest.mark.parametrize("formula", ["...qk,...h->...qkh", "...qk,...qkh->...h", "...qkh,...h->...qk"])
def test_gradients_of_vectors_and_outer_products_are_those_of_the_function_itself(formula, random):
    shapes = {"...qk": (2, 5, 3), "...h": (4,), "...qkh": (2, 5, 3, 4)}
    arguments = [jnp.asarray(random.normal(size=shapes[name])) for name in formula.partition("->")[0].split(",")]
    function = jax.grad(lambda *both: jnp.sum(jnp.cos(jnp.einsum(formula, *both))), argnums=(0, 1))
    expected, found = (jax.jit(each)(*arguments) for each in (function, with_fast_gradients(function)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)


def test_elsewhere_than_on_a_cpu_nothing_is_changed(monkeypatch):
    function, arguments = gradient("a product")
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert slow_products(jax.make_jaxpr(with_fast_gradients(function))(*arguments).jaxpr) > 0


def slow_products(jaxpr):
    """How many products sum over more than one row, which is not the left factor's last axis."""
    own = [equation for equation in jaxpr.eqns if equation.primitive.name == "dot_general"]
    inner = [sub for equation in jaxpr.eqns for sub in core.jaxprs_in_params(equation.params)]
    return sum(map(_is_slow, own)) + sum(map(slow_products, inner))


def _is_slow(equation):
    ((axes, _), _), left = equation.params["dimension_numbers"], equation.invars[0].aval
    return left.ndim - 1 not in axes and any(left.shape[axis] > 1 for axis in axes)
