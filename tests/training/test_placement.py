"""Where a state lies: what a mesh is made of, which lines are refused, and what each device then holds."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from attention_jax.errors import UserError
from attention_jax.models.placement import LAYERS
from attention_jax.tasks.translation.model import build, init, placement_of
from attention_jax.training.blueprint import Blueprint
from attention_jax.training.optimizer import OPTIMIZERS
from attention_jax.training.placement import (
    MESH,
    Placement,
    bytes_a_device,
    make_mesh,
    partitions,
    place,
    spread_rows,
    whole,
)
from configs import nmt

FSDP = {**MESH, "data": 1, "fsdp": 2}
TENSOR = {**MESH, "data": 1, "tensor": 2}


def of_ones(model, key):
    """A start of no random numbers, which is compiled in no time: where it lies is what is asked of it."""
    shapes = jax.eval_shape(lambda key: init(model, key), key)
    return jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes)


def blueprint(optimizer="adam", init=init, **sizes):
    config = nmt.get_config("transformer_small,embedded").unlock()
    config.model.kwargs.update({"width": 32, "feed_forward": 64, "encoder_layers": 1, "decoder_layers": 1, **sizes})
    model = build(config, 50, 50)
    return Blueprint(lambda key: init(model, key), optimizer, placement_of(config))


@pytest.mark.parametrize(
    ("sizes", "members", "shape"),
    [
        (MESH, 1, (1, 2, 1, 1, 1)),
        (MESH, 4, (2, 1, 1, 1, 1)),
        (MESH, 3, (1, 2, 1, 1, 1)),
        (FSDP, 1, (1, 1, 2, 1, 1)),
        ({**MESH, "data": 1, "tensor": -1}, 1, (1, 1, 1, 1, 2)),
    ],
)
def test_the_rest_of_the_devices_goes_to_the_axis_that_asks_for_it(sizes, members, shape):
    assert tuple(make_mesh(sizes, members).shape.values()) == shape


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {**MESH, "data": 3},
            "config.mesh: population 1 × data 3 × fsdp 1 × context 1 × tensor 1 is 3 devices, and there are 2",
        ),
        ({**MESH, "fsdp": 0}, "config.mesh.fsdp=0: needs 1 or more devices, or -1 for the rest"),
        ({**MESH, "fsdp": -1}, "config.mesh: data and fsdp are both -1"),
        ({**MESH, "population": 2}, "config.mesh.population=2: does not divide the 1 members"),
    ],
)
def test_a_mesh_that_is_not_of_the_devices_is_refused(sizes, message):
    with pytest.raises(UserError, match=message):
        make_mesh(sizes)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("sizes", [FSDP, TENSOR])
def test_each_device_holds_its_share_of_parameters_and_of_what_the_optimizer_keeps(optimizer, sizes):
    own, mesh = blueprint(optimizer, of_ones), make_mesh(sizes)
    (state,) = own.create([0], mesh)
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert held == bytes_a_device(own.shapes(), own.partitions(mesh), mesh)
    assert 0.5 * total <= held < 0.56 * total
    query = state.variables["params"]["encoder_0"]["self_attention"]["query"]
    assert query.addressable_shards[0].data.size == query.size / 2


def test_a_state_has_the_same_numbers_wherever_it_is_made():
    (one,), (other,) = (blueprint().create([3], make_mesh(sizes)) for sizes in (MESH, FSDP))
    jax.tree.map(np.testing.assert_array_equal, whole(one), whole(other))


def state_of(**shapes):
    return {"variables": {"params": {name: jnp.zeros(shape) for name, shape in shapes.items()}}, "moments": {}}


@pytest.mark.parametrize(
    ("lines", "shape", "message"),
    [
        (
            (("^w", ("fsdp", None)),),
            (3, 4),
            r"placement of w: its axis 0 of \(3, 4\) does not divide by config.mesh.fsdp=2",
        ),
        ((("w$", ("fsdp",)), ("^w", (None,))), (4,), r"placement of w: 2 lines match it: w\$, \^w"),
        ((("other", ("fsdp",)),), (4,), "placement of w: no line matches it"),
        ((("w", ("fsdp", None)),), (4,), "placement of w: the line w is for 2 axes"),
    ],
)
def test_a_parameter_without_one_line_that_fits_is_refused_by_name(lines, shape, message):
    with pytest.raises(UserError, match=message):
        partitions(state_of(w=shape), Placement(lines, min_size=None), make_mesh(FSDP))


def test_what_no_line_names_is_spread_by_its_largest_axis_that_divides_from_a_size_on():
    placed = partitions(state_of(large=(3, 8, 6), small=(2, 2)), Placement((), min_size=100), make_mesh(FSDP))
    assert placed["variables"]["params"] == {"large": P(None, "fsdp"), "small": P()}
    with pytest.raises(UserError, match=r"placement of odd: no axis of \(11, 11\) divides by config.mesh.fsdp=2"):
        partitions(state_of(odd=(11, 11)), Placement((), min_size=100), make_mesh(FSDP))


def test_every_line_of_the_table_names_a_parameter_of_a_transformer():
    names = [name for name, _ in jax.tree_util.tree_leaves_with_path(blueprint(shared="none", gated=True).shapes())]
    paths = ["/".join(str(getattr(part, "key", "")) for part in name) for name in names]
    for pattern, _ in LAYERS:
        assert any(re.search(pattern.removeprefix("^"), path) for path in paths), pattern


@pytest.mark.parametrize("axis", ["data", "fsdp", "context"])
def test_rows_are_filled_up_and_come_back_as_they_were(axis):
    like = place(jnp.zeros(4), make_mesh({**MESH, "data": 1, axis: 2}), P())
    rows = np.arange(15).reshape(5, 3)
    found = spread_rows(rows, like)
    assert found.addressable_shards[0].data.shape == (3, 3)
    np.testing.assert_array_equal(whole(found), np.vstack([rows, np.zeros((1, 3))]))
