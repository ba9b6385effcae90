"""A sweep's cells as records, and by their settings."""

import csv
import dataclasses
import json
import os
import shutil

import pytest
from sweeper import sweep_of

from attention_jax.runs.folder import Run
from attention_jax.sweeps.answer import write_answer
from attention_jax.sweeps.records import link_names, records_of


@pytest.fixture
def answered(tmp_path):
    values = {1.0: {0: 0.1, 1: "diverged"}, 0.5: {0: 0.4, 1: 0.5}}
    sweep = sweep_of(tmp_path, values)
    write_answer(sweep)
    return sweep


def test_cells_are_rows_with_their_overrides_seed_status_folder_and_every_metric(answered):
    with open(answered.path / "cells.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["optimizer.learning_rate"], row["seed"], row["status"]) for row in rows] == [
        ("1.0", "0", "finished"),
        ("1.0", "1", "diverged"),
        ("0.5", "0", "finished"),
        ("0.5", "1", "finished"),
    ]
    assert [row["validation.loss"] for row in rows] == ["0.1", "", "0.4", "0.5"]
    for row in rows:
        assert (answered.path / row["path"] / "result.json").is_file()
    assert json.loads((answered.path / "result.json").read_text())["cells"] == records_of(answered)


def test_a_cell_that_gained_seeds_names_every_commit_that_made_it(tmp_path):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1}})
    path = sweep.cell(*sweep.plan.cells) / "result.json"
    codes = [{"commit": "a", "changed": False}, {"commit": "", "changed": None}, {"commit": "b", "changed": True}]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": codes}))
    assert [record["commit"] for record in records_of(sweep)] == ["a, b"]


def test_a_seed_of_a_cell_of_several_has_its_own_numbers(tmp_path):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1}})
    (name,) = sweep.plan.cells
    members = [{"validation": {"loss": 0.1}}, {"validation": {"loss": 0.3}}]
    result = {"status": "finished", "seeds": [0, 1], "validation": {"loss": 0.2}, "members": members}
    (sweep.cell(name) / "result.json").write_text(json.dumps(result | {"cost": {"flops": 5.0}, "seconds": 1.5}))
    common = {"cost.flops": 5.0, "seconds": 1.5}
    assert [(one["seed"], one["metrics"]) for one in records_of(sweep)] == [
        (0, {"validation.loss": 0.1, **common}),
        (1, {"validation.loss": 0.3, **common}),
    ]


def test_a_cell_is_found_by_its_setting(answered):
    folder = answered.path / "by_setting"
    assert sorted(path.name for path in folder.iterdir()) == [
        f"learning_rate={rate},seed={seed}" for rate in (0.5, 1.0) for seed in (0, 1)
    ]
    link = folder / "learning_rate=0.5,seed=1"
    assert not os.path.isabs(os.readlink(link))
    assert Run(link, 0.0).result()["validation"]["loss"] == 0.5
    write_answer(answered)  # again: links are made anew
    assert len(list(folder.iterdir())) == 4


def test_a_sweep_that_was_copied_with_its_links_followed_is_answered_too(answered, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(answered.path, copied)
    write_answer(dataclasses.replace(answered, path=copied))
    assert Run(copied / "by_setting" / "learning_rate=0.5,seed=1", 0.0).result()["validation"]["loss"] == 0.5


def test_a_links_name_is_a_files_name(tmp_path):
    texts = ("rotary:scaling=ntk,factor=4", "a/b c", "x" * 400)
    values = {(("model.positions", text),): {0: 0.1} for text in texts}
    names = list(link_names(sweep_of(tmp_path, values)).values())
    assert names[:2] == ["positions=rotary:scaling=ntk,factor=4,seed=0", "positions=a_b_c,seed=0"]
    assert len(names[2].encode()) < 256
    assert names[2].endswith("seed=0")


def test_the_page_links_to_the_cells(answered):
    page = (answered.path / "report.html").read_text()
    for name in answered.plan.cells:
        assert f'href="cells/{name}/"' in page
