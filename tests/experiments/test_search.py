"""Searches played over a table, as a run."""

import json

import pytest

pytest.importorskip("optuna", reason='needs Optuna: pip install "attention_jax[search]"')

from searched import write_table
from sweeper import train

from attention_jax.errors import UserError
from attention_jax.launcher import experiments
from configs import search


def config_of(path, **values):
    config = search.get_config()
    config.update(table=str(path), methods=("random", "tpe+halving"), budgets=(2, 4), batch=2, seeds=(0, 1, 2))
    config.update(values)
    return config.lock()


def test_a_run_has_the_regret_of_every_method_with_its_interval_and_a_figure(tmp_path, capsys):
    train(config_of(write_table(tmp_path / "sweep")), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {*result["regret"]} == {"random", "tpe+halving"}
    for name, found in result["regret"].items():
        assert found["2"] >= found["4"] >= 0
        for budget, mean in found.items():
            assert mean == pytest.approx(sum(one["regret"][name][budget] for one in result["members"]) / 3)
            low, high = result["ci95"]["regret"][name][budget]
            assert low <= mean <= high
    assert (tmp_path / "run" / "figures" / "regret.png").exists()
    assert "Regret after so many whole trainings" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"table": ""}, "config.table is empty"),
        ({"methods": ("best",)}, "config.methods: 'best' is no method"),
        ({"budgets": (1,)}, r"config.budgets=\(1,\): needs budgets of a batch, config.batch=2"),
    ],
)
def test_what_cannot_be_played_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        experiments.load("search").check(config_of("somewhere", **values))
    with pytest.raises(UserError, match="trains nothing that could be described"):
        experiments.load("search").describe(config_of("somewhere"))


def test_the_grid_of_a_table_is_a_sweep_of_its_config():
    assert len(search.sweep("table")) == 8 * 6 * 3
    assert len(search.sweep("smoke")) == 4 * 3 * 2
    assert search.get_config("table").experiment == "nmt"
    with pytest.raises(ValueError, match="no variant 'best'"):
        search.get_config("best")
    with pytest.raises(ValueError, match="the variant regret is a run"):
        search.sweep("regret")
