"""The operation that made a NaN or an infinity is found, however deep it lies, and in the layer that it is of."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from attention_jax.training.not_finite import layer_of, origin_of


def scanned(x):
    def step(carry, row):
        return carry + row, jnp.log(row - 2)

    return jax.lax.scan(step, 0.0, x)[1].sum()


def looped(x):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sqrt(c[1] - 1)), (0, x.sum()))[1]


def compiled(x):
    return jax.jit(lambda x: jnp.sum(jnp.log(-x)))(x)


def chosen(x):
    return jax.lax.cond(x[0] > 0, lambda x: (x / (x - x)).sum() * 0, lambda x: x.sum(), x)


@jax.custom_jvp
def own(x):
    return jnp.arcsin(x * 2).sum()


own.defjvp(lambda primals, tangents: (own(*primals), tangents[0].sum()))

BROKEN = {
    "log": (scanned, "log"),
    "sqrt": (looped, "sqrt"),
    "in jit": (compiled, "log"),
    "of an infinity": (chosen, "mul"),
    "custom": (own, "asin"),
    "gradient": (lambda x: jax.grad(lambda x: jnp.sqrt(x * 0).sum())(x).sum(), "mul"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_the_operation_that_made_a_nan_is_named_with_its_line(kind):
    function, operation = BROKEN[kind]
    origin = origin_of(function, jnp.ones(3))
    assert (origin.what, origin.operation) == ("NaN", operation)
    assert "test_not_finite.py:" in origin.line


def test_a_kernels_program_and_that_of_a_device_are_taken_as_one_operation():
    def kernel(given, made):
        made[...] = jnp.log(given[...] - 2)

    called = pl.pallas_call(kernel, jax.ShapeDtypeStruct((3,), jnp.float32), interpret=True)
    assert origin_of(lambda x: called(x).sum(), jnp.ones(3)).operation == "pallas_call"
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("rows")
    logs = jax.shard_map(lambda x: jnp.log(x - 2), mesh=mesh, in_specs=rows, out_specs=rows)
    assert origin_of(lambda x: logs(x).sum(), jnp.ones(4)).operation == "shard_map"


def test_an_infinity_that_became_a_nan_is_named_with_what_made_it():
    origin = origin_of(lambda x: jnp.sum(jnp.exp(x) - jnp.exp(x)), jnp.full(3, 1e9))
    assert (origin.operation, origin.given.operation, origin.given.what) == ("sub", "exp", "infinity")


def test_an_infinity_alone_is_found_too():
    assert origin_of(lambda x: jnp.exp(x).sum() * 2, jnp.full(3, 1e9)).operation == "exp"


def test_what_is_finite_has_no_origin_and_what_is_dropped_is_not_followed():
    assert origin_of(lambda x: x.sum(), jnp.ones(3)) is None
    assert origin_of(lambda x: jnp.where(x > 2, jnp.log(-x), x).sum(), jnp.ones(3)) is None
    masked = lambda x: jax.nn.softmax(jnp.where(jnp.arange(3) < 2, x, -jnp.inf)).sum()  # noqa: E731
    assert origin_of(masked, jnp.ones(3)) is None
    filled = lambda x: jax.jit(lambda x: jnp.where(x > 2, x, -jnp.inf))(x)  # noqa: E731
    found = origin_of(lambda x: jnp.log(-x).sum() + filled(x).sum(), jnp.ones(3))
    assert found.operation == "log"
    assert origin_of(lambda x: (filled(x) - filled(x)).sum(), jnp.ones(3)).given is None
    found = origin_of(lambda x: masked(x) + jnp.log(-x).sum(), jnp.ones(3))
    assert found.operation == "log"


def test_an_argument_that_was_broken_before_is_named():
    origin = origin_of(lambda tree: tree["weights"].sum(), {"weights": jnp.array([1.0, jnp.nan])})
    assert "what the step was given, ['weights']" in str(origin)


class Inner(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.log(nn.Dense(2, use_bias=False)(x))


class Outer(nn.Module):
    @nn.compact
    def __call__(self, x):
        return Inner(name="second")(Inner(name="first")(x) * 0 - 1).sum()


def test_the_layer_is_the_modules_path_forward_and_in_the_gradient():
    variables = jax.tree.map(jnp.ones_like, Outer().init(jax.random.key(0), jnp.ones((1, 3))))
    origin = origin_of(Outer().apply, variables, jnp.ones((1, 3)))
    assert (origin.operation, origin.layer) == ("log", "Outer/second")
    assert layer_of(("transpose(jvp(Model))/Model.decode/Model._teach/layer", "attention/attention.score")) == (
        "Model/decode/layer/attention/score, in its gradient"
    )
