"""What --mode=describe says of a model's parameters."""

import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from attention_jax.launcher.description import layers_of, table_of

SHAPES = {
    "decoder_0": {"attention": {"query": (4, 4), "value": (4, 4)}, "norm": {"gain": (4,)}},
    "embedding": {"table": (1000, 4)},
    "w_v": (28,),
}
PARAMETERS = jax.tree.map(
    lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), SHAPES, is_leaf=lambda leaf: isinstance(leaf, tuple)
)


def rows(text):
    return [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "+" not in line]


def test_it_sums_up_by_module():
    assert rows(table_of(PARAMETERS)) == [
        ["module", "tensors", "parameters", "share", "over"],
        ["decoder_0", "3", "36", "0.9%", "whole"],
        ["embedding", "1", "4,000", "98.4%", "whole"],
        ["w_v", "1", "28", "0.7%", "whole"],
    ]


def test_every_tensor_is_listed_where_that_is_asked_for():
    listed = rows(table_of(PARAMETERS, every_tensor=True))
    assert listed[0] == ["tensor", "shape", "over", "dtype", "size"]
    assert ["decoder_0/attention/query", "4×4", "whole", "float32", "16"] in listed
    assert len(listed) == 1 + 5


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ({"layers": 2}, ""),
        ({"stacked": False, "remat": "none"}, ""),
        ({"stacked": True, "remat": "none"}, "stacked"),
        ({"kwargs": {"stacked": True, "remat": "dots"}}, "stacked, rematerialized: dots"),
    ],
)
def test_it_says_how_layers_are_kept_where_that_is_not_one_by_one(section, line):
    assert layers_of(ConfigDict({"model": section})) == line
