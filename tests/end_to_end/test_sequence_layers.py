"""What is measured of sequence layers is what the formulas say."""

import pytest

from attention_jax.errors import UserError
from attention_jax.launcher import experiments
from attention_jax.tasks.sequence_layers.layers import LAYERS
from attention_jax.tasks.sequence_layers.measuring import measure
from configs import sequence_layers as configs


@pytest.fixture(scope="module")
def measured():
    config = configs.get_config()
    config.lengths, config.widths, config.repeats, config.reach = (8, 16, 32), (4, 8, 16), 1, 2
    return measure(config)


EXPONENTS = {"self_attention": (2, 1), "window": (1, 1), "gru": (1, 2), "cnn": (1, 2), "cnn_dilated": (1, 2)}


@pytest.mark.parametrize("name", LAYERS)
def test_counted_flops_are_the_formulas_and_so_are_their_exponents(measured, name):
    assert all(row["flops"] == row["formula"] for row in measured["costs"][name])
    powers = measured["exponents"][name]["flops"]
    assert [powers["n"][0], powers["d"][0]] == pytest.approx(EXPONENTS[name])


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "gru"])
def test_the_compiler_counts_no_less_where_there_is_no_loop(measured, name):
    assert all(row["flops"] <= row["compiled_flops"] for row in measured["costs"][name])


@pytest.mark.parametrize("name", LAYERS)
def test_only_recurrence_grows_deeper_with_the_sequence(measured, name):
    depth = measured["exponents"][name]["depth"]
    assert depth["n"][0] == pytest.approx(1 if name == "gru" else 0, abs=0.05)
    assert depth["d"][0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_paths_traced_through_jacobians_are_those_of_the_formulas(measured, name):
    assert all(row["layers"] == row["formula"] for row in measured["paths"][name])


def test_dilation_shortens_paths(measured):
    paths = [measured["paths"][name][-1]["layers"] for name in ("cnn_dilated", "cnn")]
    assert paths[0] < paths[1] / 2


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("layers", ("mlp",), "config.layers: no layer 'mlp': choose of self_attention"),
        ("kernel", 4, "config.kernel=4: needs an odd number"),
        ("lengths", (8, 16), "config.lengths=.*three or more"),
        ("widths", (8, 8, 8), "config.widths=.*three or more different"),
        ("layers", (), "config.layers=.*choose of"),
        ("reach", 0, "config.reach=0: needs 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(key, value, message):
    config = configs.get_config()
    config[key] = value
    with pytest.raises(UserError, match=message):
        experiments.load("sequence_layers").check(config)
