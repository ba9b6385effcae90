"""What cells say together: by setting, task and seed."""

from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.evaluation import comparison
from attention_jax.runs.experiment import FinishedCell
from experiments._comparison import OfSeed, answer, gather, measured_of, measures_of, settings_of


def config(*within):
    return ConfigDict({"sweep": {"within": within, "baseline": ""}})


CONFIG = config("data.task")
HEIGHTS = {("none", "copy"): (0.2, 0.4, 0.3), ("alibi", "copy"): (0.7, 0.8, 0.9), ("none", "sort"): (1.0, 0.9, 0.8)}


def cell(value, seed, status="finished", **overrides):
    overrides = {name.replace("__", "."): each for name, each in overrides.items()}
    result = {"seeds": [seed], "status": status, "value": value}
    return FinishedCell(ConfigDict({"data": {"task": "copy"}}), Path(), result, {**overrides, "seeds": (seed,)})


def cells():
    return [
        cell(value, seed, model__positions=name, data__task=task)
        for (name, task), values in HEIGHTS.items()
        for seed, value in enumerate(values)
    ]


def gathered(found, conf=CONFIG, measure="token_accuracy"):
    def measured(cell, member):
        return OfSeed({measure: {"16": member["value"], "32": 0.0}}, member["value"])

    return gather(conf, found, settings_of(conf, found, ""), "", measured)


def ranks(scores):
    return comparison.ranks(measures_of(scores)[0], measured_of(scores))


def scores():
    return gathered(cells())


def test_seeds_and_tasks_make_no_setting():
    assert settings_of(CONFIG, cells(), "") == ["none"] * 3 + ["alibi"] * 3 + ["none"] * 3
    other = [each._replace(overrides={"a": 1, "b": 2}) for each in cells()]
    other[0] = other[0]._replace(overrides={"a": 2, "b": 1})
    other[1] = other[1]._replace(overrides={"a": 1, "b": 1})
    assert settings_of(CONFIG, other[:3], "") == ["2, 1", "1", "1, 2"]


def test_settings_are_compared_within_every_key_that_the_sweep_names():
    found = [
        cell(value, 0, model__positions=name, data__task="copy", data__length=length)
        for (name, length), value in {
            ("none", 16): 0.9,
            ("none", 32): 0.1,
            ("alibi", 16): 0.5,
            ("alibi", 32): 0.6,
        }.items()
    ]
    orders = answer(gathered(found, config("data.task", "data.length")), "none")["orders"]
    assert {task: [row["setting"] for row in orders[task]] for task in orders if task != "mrr"} == {
        "copy, length 16": ["none", "alibi"],
        "copy, length 32": ["alibi", "none"],
    }


def test_a_setting_task_and_seed_that_is_met_twice_is_refused():
    found = [cell(value, 0, model__positions="none", data__task="copy") for value in (0.1, 0.9)]
    with pytest.raises(UserError, match="two cells are of the setting 'none', task 'copy' and seed 0"):
        gathered(found)


def test_differences_are_paired_by_seed_and_the_best_comes_first():
    order = answer(scores(), "none")["orders"]["copy"]
    assert [row["setting"] for row in order] == ["alibi", "none"]
    assert order[0]["difference"]["mean"] == pytest.approx(0.5)
    half = 4.302653 * np.std([0.5, 0.4, 0.6], ddof=1) / np.sqrt(3)
    assert order[0]["difference"]["high"] == pytest.approx(0.5 + half)
    assert "difference" not in order[1]


def test_a_seed_that_diverged_ranks_last_and_so_does_its_setting():
    found = [*cells()[:5], cell(None, 2, "diverged", model__positions="alibi", data__task="copy")]
    lost = gathered(found)
    np.testing.assert_allclose(ranks(lost)["alibi"], [1, 1, 0.5])
    assert [row["setting"] for row in answer(lost, "none")["orders"]["copy"]] == ["none", "alibi"]
    assert answer(lost, "none")["orders"]["copy"][1]["lost"] == 1


def test_ranks_are_over_the_tasks_that_all_settings_have():
    assert comparison.shared_by_all(measured_of(scores())) == (["copy"], [0, 1, 2])
    np.testing.assert_allclose(ranks(scores())["alibi"], [1, 1, 1])
    of_loss = gathered(cells(), measure="perplexity")  # of which less is better
    np.testing.assert_allclose(ranks(of_loss)["alibi"], [0.5, 0.5, 0.5])


def test_curves_have_every_length_with_its_interval():
    curve = answer(scores(), "")["curves"]["alibi"]["copy"]
    assert curve["length"] == [16, 32]
    assert curve["mean"] == pytest.approx([0.8, 0.0])
    assert curve["low"][0] < 0.8 < curve["high"][0]
