"""What a sweep over depth says: distances by depth, over seeds, and the estimator that is nearest."""

from pathlib import Path

import pytest

from attention_jax.reports.conclusion import FinishedCell
from attention_jax.tasks.in_context.conclusion import by_depth, conclude
from configs import kernel_regression


def cell(layers, distances, status="finished", group=""):
    config = kernel_regression.get_config("in_context_smoke")
    config.model.layers = layers
    members = [{"error": {"4": d / 10}, "distance": {"ridge": {"4": d}, "attention": {"4": 0.3}}} for d in distances]
    result = {"seeds": list(range(len(members))), "members": members, "status": status}
    return FinishedCell(config, Path(), result, f"layers={layers}", group, "")


CELLS = [cell(2, (0.1, 0.2)), cell(1, (0.5, 0.7)), cell(2, (0.3,)), cell(4, (9.0,), "diverged")]


def test_distances_are_means_over_the_seeds_of_a_depth_and_those_that_diverged_are_left_out():
    found = by_depth(CELLS, "4")[""]
    assert list(found) == [1, 2]
    assert found[1]["ridge"]["mean"] == pytest.approx(0.6)
    assert found[2]["ridge"]["mean"] == pytest.approx(0.2)
    assert found[2]["truth"]["mean"] == pytest.approx(0.02)
    assert found[2]["ridge"]["low"] < 0.2 < found[2]["ridge"]["high"]


def test_the_table_names_the_nearest_estimator_and_the_figure_is_drawn(tmp_path):
    config = kernel_regression.get_config("in_context_smoke")
    told = conclude(config, CELLS, tmp_path, {})
    assert [row[-1] for row in told.tables[0].rows] == ["attention", "ridge"]
    assert [figure.path.is_file() for figure in told.figures] == [True]
    assert told.tables[0].note.endswith("Without those that diverged, failed or are missing (4 layers: seeds 0).")
    assert "Without" not in conclude(config, CELLS[:3], tmp_path, {}).tables[0].note


def test_settings_of_one_depth_are_not_seeds_of_each_other(tmp_path):
    wide = cell(1, (9.0,))._replace(setting="layers=1, width=64")
    assert conclude(CELLS[0].config, [*CELLS, wide], tmp_path, {}).tables == []
