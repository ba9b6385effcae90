"""What cells say together: by setting, task and seed."""

from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from attention_jax.runs.experiment import FinishedCell
from experiments._comparison import Measured, answer, gather, ranks, settings_of, shared_by_all

CONFIG = ConfigDict({"sweep": {"within": ("data.task",), "baseline": ""}})
HEIGHTS = {("none", "copy"): (0.2, 0.4, 0.3), ("alibi", "copy"): (0.7, 0.8, 0.9), ("none", "sort"): (1.0, 0.9, 0.8)}


def cells():
    for (name, task), heights in HEIGHTS.items():
        for seed, height in enumerate(heights):
            overrides = {"model.positions": name, "data.task": task, "seeds": (seed,)}
            result = {"seeds": [seed], "height": height}
            yield FinishedCell(ConfigDict({"task": task}), Path(), result, overrides)


def scores():
    found = list(cells())
    names = settings_of(CONFIG, found, "")
    measured = lambda member: Measured({"accuracy": {"16": member["height"], "32": 0.0}}, member["height"])  # noqa: E731
    return gather(found, names, lambda cell: cell.config.task, measured)


def test_seeds_and_tasks_make_no_setting():
    assert settings_of(CONFIG, list(cells()), "") == ["none"] * 3 + ["alibi"] * 3 + ["none"] * 3
    other = [cell._replace(overrides={"a": 1, "b": 2}) for cell in cells()]
    other[0] = other[0]._replace(overrides={"a": 2, "b": 1})
    other[1] = other[1]._replace(overrides={"a": 1, "b": 1})
    assert settings_of(CONFIG, other[:3], "") == ["2, 1", "1", "1, 2"]


def test_differences_are_paired_by_seed_and_the_best_comes_first():
    order = answer(scores(), 1, "none")["orders"]["copy"]
    assert [row["setting"] for row in order] == ["alibi", "none"]
    assert order[0]["difference"]["mean"] == pytest.approx(0.5)
    half = 4.302653 * np.std([0.5, 0.4, 0.6], ddof=1) / np.sqrt(3)
    assert order[0]["difference"]["high"] == pytest.approx(0.5 + half)
    assert "difference" not in order[1]


def test_ranks_are_over_the_tasks_that_all_settings_have():
    assert shared_by_all(scores()) == (["copy"], [0, 1, 2])
    np.testing.assert_allclose(ranks(scores(), 1)["alibi"], [1, 1, 1])
    np.testing.assert_allclose(ranks(scores(), -1)["alibi"], [0.5, 0.5, 0.5])


def test_curves_have_every_length_with_its_interval():
    curve = answer(scores(), 1, "")["curves"]["alibi"]["copy"]
    assert curve["length"] == [16, 32]
    assert curve["mean"] == pytest.approx([0.8, 0.0])
    assert curve["low"][0] < 0.8 < curve["high"][0]
