"""Cells: checked against the config before anything runs, and named by all that makes their numbers."""

import pytest
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.runs.config import flatten, nested
from attention_jax.sweeps.cells import index_of, resolve
from attention_jax.sweeps.matching import matched
from attention_jax.sweeps.settings import without_settings

BASE = {
    "seeds": (0,),
    "optimizer": {"learning_rate": 1e-3, "dropout": 0.1},
    "model": {"layers": 2, "name": "a"},
    "data": {"n": 5},
    "sweep": {"engine": "inline"},
}


def configure(variant):
    config = ConfigDict(BASE)
    if variant:
        config.model.name = variant
    return config.lock()


def cells(space, identity="data", code="c" * 12, **kwargs):
    return resolve(space, configure, lambda config: identity, lambda: code, **kwargs)


def test_a_cell_is_the_config_with_its_overrides():
    (cell,) = cells([{"optimizer.learning_rate": 1, "seeds": (3,)}])
    assert cell.config == {
        "seeds": (3,),
        "optimizer.learning_rate": 1.0,
        "optimizer.dropout": 0.1,
        "model.layers": 2,
        "model.name": "a",
        "data.n": 5,
    }
    assert isinstance(cell.config["optimizer.learning_rate"], float)
    assert nested(cell.config).to_dict()["optimizer"] == {"learning_rate": 1.0, "dropout": 0.1}
    assert flatten(nested(cell.config)) == cell.config


def test_the_variant_chooses_the_config():
    names = [cell.config["model.name"] for cell in cells([{}, {"variant": "b"}])]
    assert names == ["a", "b"]


def test_a_name_is_of_config_data_and_code_and_of_nothing_else():
    name = cells([{"model.layers": 3}])[0].name
    assert name == cells([{"model.layers": 3, "model.name": "a"}])[0].name
    assert name != cells([{"model.layers": 4}])[0].name
    assert name != cells([{"model.layers": 3}], identity="other")[0].name
    assert name != cells([{"model.layers": 3}], code="d" * 12)[0].name
    assert "sweep" not in without_settings(configure(""))


def test_a_cell_that_starts_from_another_run_is_named_by_what_that_run_came_to(tmp_path):
    def configured(variant):
        config = ConfigDict(BASE | {"train": {"init_from": str(tmp_path)}})
        return config.lock()

    def named(result):
        (tmp_path / "result.json").write_text(result)
        return resolve([{}], configured, lambda config: "data", lambda: "c" * 12)[0]

    assert named("{}") == named("{}")
    assert named("{}").name != named('{"steps": 2}').name
    assert named("{}").data != named('{"steps": 2}').data


def test_every_finished_run_that_cells_read_is_identified():
    asked, base = [], ConfigDict(BASE | {"run": "runs/a"})
    space = [{"run": run, "seeds": (seed,)} for run in ("runs/a", "runs/b") for seed in (0, 1)]
    resolve(space, lambda variant: base, lambda config: asked.append(config.run) or config.run, lambda: "c" * 12)
    assert asked == ["runs/a", "runs/b"]


def test_a_cell_that_comes_twice_is_one():
    assert len(cells([{"model.layers": 2}, {"optimizer.dropout": 0.1}, {"model.layers": 3}])) == 2


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ([], "the space is empty"),
        ([{}, {"optimizer.learning_rat": 1}], "no 'optimizer.learning_rat'. Did you mean 'optimizer.learning_rate'"),
        ([{"optimizer.lr": 1}], "no 'optimizer.lr'. Did you mean 'optimizer.learning_rate'"),
        ([{"lr": 1}], "no 'lr'. Did you mean 'optimizer.learning_rate'"),
        ([{"seed": 1}], "no 'seed'. Did you mean 'seeds'"),
        ([{"model.layers": "two"}], "model.layers='two': the config has a int there"),
        ([{"model": 3}], "'model' is a section"),
        ([{"sweep.engine": "slurm"}], "no 'sweep.engine'"),
    ],
)
def test_one_bad_override_fails_the_whole_sweep(space, message):
    with pytest.raises(UserError, match=message):
        cells(space)


def test_what_is_adjusted_is_an_override_too():
    (cell,) = cells([{"seeds": (1,)}], adjust=lambda configs: [{**config, "model.layers": 7} for config in configs])
    assert cell.overrides == {"seeds": (1,), "model.layers": 7}


@pytest.mark.parametrize(("start", "unit"), [(10, 1), (640, 8), (3, 1)])
def test_a_matched_number_costs_what_was_asked_within_a_hundredth(start, unit):
    def flops(config):
        return 3.0 * config["width"] ** 2 + 50 * config["width"]

    found = matched({"width": start, "other": 1}, "width", unit, flops({"width": 320}), "flops", flops)
    assert found == {"width": 320, "other": 1}


def test_where_nothing_is_within_a_hundredth_the_nearest_is_named():
    with pytest.raises(UserError, match="width=3 comes nearest, with 9 parameters where the baseline has 10.*match_by"):
        matched({"width": 1}, "width", 1, 10.0, "parameters", lambda config: config["width"] ** 2)
    with pytest.raises(UserError, match="'name': 'a' is not a whole number"):
        matched({"name": "a"}, "name", 1, 10.0, "flops", lambda config: 1.0)
    with pytest.raises(UserError, match="match_by='steps': does not change the parameters.*model.feed_forward"):
        matched({"steps": 1}, "steps", 1, 10.0, "parameters", lambda config: 1.0)


def test_a_baseline_may_have_commas_in_its_value():
    scaled = "rotary:scaling=ntk,factor=4"
    space = [{"model.positions": name, "data.task": task} for task in ("copy", "sort") for name in ("rotary", scaled)]
    assert index_of(space, f"model.positions={scaled}") == 1
    assert index_of(space, f"model.positions={scaled},data.task=sort") == 3
    assert index_of(space, "data.task=sort,model.positions=rotary") == 2
    with pytest.raises(
        UserError, match="no setting has these values; the first has 'model.positions=rotary,data.task=copy'"
    ):
        index_of(space, "model.positions=rotary:scaling=ntk")
