"""The plan: what shares a program, and that it holds."""

import json

import pytest

from attention_jax.errors import UserError
from attention_jax.runs.code import Code
from attention_jax.sweeps.cells import Cell
from attention_jax.sweeps.plan import Plan, extend, read_plan, require_dynamic, to_json

DYNAMIC = ("seeds", "rate")


def cell(name, **config):
    return Cell(f"{name}-code", config, {"seeds": (0,), "rate": 0.1, "layers": 1, **config})


def plan_of(*cells, plan=None, how="vmap", size=10):
    return extend(plan, cells, Code("code", {"a.py": "1"}), DYNAMIC, lambda first, count: (how, size))


def test_cells_with_equal_statics_are_one_program_in_waves():
    plan = plan_of(cell("a", rate=1.0), cell("b", layers=2), cell("c", rate=2.0), cell("d", seeds=(1,)), size=2)
    assert [program.waves for program in plan.programs] == [[["a-code", "c-code"], ["d-code"]], [["b-code"]]]
    assert plan.programs[0].config == {"layers": 1}
    assert plan.cells["c-code"].dynamic == {"seeds": (0,), "rate": 2.0}


def test_what_was_planned_holds_when_cells_are_added():
    first = plan_of(cell("a", seeds=(0,)), cell("b", seeds=(1,)))
    more = plan_of(*(cell(name, seeds=(seed,)) for seed, name in enumerate("abcd")), plan=first, how="loop", size=1)
    assert more.programs[0].how == "vmap"
    assert more.programs[0].waves == [["a-code", "b-code"], ["c-code", "d-code"]]
    assert plan_of(cell("a", seeds=(0,)), plan=more) == more


def test_a_plan_is_read_as_it_was_written(tmp_path):
    plan = plan_of(cell("a", rate=1.0), cell("b", layers=2))
    (tmp_path / "plan.json").write_text(to_json(plan))
    assert {*json.loads(to_json(plan))} == {"code", "files", "cells", "groups"}  # as every version wrote it
    assert read_plan(tmp_path / "plan.json") == plan
    assert read_plan(tmp_path / "none.json") is None
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(UserError, match="not the plan of a sweep"):
        read_plan(tmp_path / "plan.json")
    assert isinstance(plan, Plan)


def test_what_must_be_dynamic_and_is_not_is_refused_with_why():
    require_dynamic(("rate",), DYNAMIC)
    with pytest.raises(UserError, match="'layers' is static: it changes shapes or code.*Dynamic are seeds, rate"):
        require_dynamic(("layers",), DYNAMIC)
