"""Where activations lie on a mesh that is set."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from attention_jax.ops.placing import over_features, over_rows, parts_of_a_text

AXES = ("population", "data", "fsdp", "context", "tensor")
X = jnp.arange(24.0).reshape(4, 3, 2)


def mesh(*sizes):
    devices = jax.devices()[: int(np.prod(sizes))]
    return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 5, devices=devices)


def laid_out(function, *sizes, x=X):
    with jax.set_mesh(mesh(*sizes)):
        found = jax.jit(function)(x)
    np.testing.assert_array_equal(found, x)
    return found.sharding


@pytest.mark.parametrize("function", [over_rows, over_features])
def test_without_a_mesh_or_on_one_device_nothing_is_added_to_a_program(function):
    assert not jax.make_jaxpr(function)(X).eqns
    with jax.set_mesh(mesh(1, 1, 1, 1, 1)):
        assert not jax.make_jaxpr(function)(X).eqns


def test_a_mesh_with_other_axes_lays_nothing_out():
    with jax.set_mesh(jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,))):
        assert not jax.make_jaxpr(over_rows)(X).eqns


@pytest.mark.parametrize("sizes", [(1, 2, 1, 1, 1), (1, 1, 2, 1, 1)])
def test_rows_are_over_the_data_axes(sizes):
    assert laid_out(over_rows, *sizes).shard_shape(X.shape) == (2, 3, 2)


def test_features_are_over_tensor_where_each_device_has_one():
    assert laid_out(over_features, 1, 1, 1, 1, 2).shard_shape(X.shape) == (4, 3, 1)
    assert laid_out(lambda x: over_features(x, axis=-2), 1, 2, 1, 1, 1).shard_shape(X.shape) == (2, 3, 2)
    with jax.set_mesh(mesh(1, 1, 1, 1, 2)):
        jaxpr = jax.make_jaxpr(over_features)(X[..., :1])
    assert jaxpr.eqns[0].params["sharding"].spec == PartitionSpec(("data", "fsdp"), None, None)


TEXTS = jnp.arange(48.0).reshape(2, 2, 6, 2)  # rows, heads, tokens, features


def test_tokens_are_over_context_where_they_divide():
    assert laid_out(over_rows, 1, 1, 1, 2, 1, x=TEXTS[:, 0]).shard_shape((2, 6, 2)) == (2, 3, 2)
    assert laid_out(over_features, 1, 1, 1, 2, 1, x=TEXTS).shard_shape(TEXTS.shape) == (2, 2, 3, 2)
    for function, whole in ((over_rows, X), (over_rows, X[:, 0, 0]), (over_features, X), (over_features, X[:, 0])):
        assert laid_out(function, 1, 1, 1, 2, 1, x=whole).is_fully_replicated


def test_a_text_has_as_many_parts_as_there_are_devices_along_context():
    assert parts_of_a_text() == 1
    for sizes, parts in (((1, 1, 1, 2, 1), 2), ((1, 2, 1, 1, 1), 1), ((1, 1, 1, 1, 1), 1)):
        with jax.set_mesh(mesh(*sizes)):
            assert parts_of_a_text() == parts


def test_members_side_by_side_are_over_population():
    side_by_side = jax.vmap(over_rows, spmd_axis_name="population")
    assert laid_out(side_by_side, 2, 1, 1, 1, 1).shard_shape(X.shape) == (2, 3, 2)
