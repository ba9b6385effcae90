"""Induction heads over training, launched: what is measured, dated and drawn."""

import json

import pytest


@pytest.mark.slow
def test_a_run_dates_its_phase_change_with_an_interval_over_seeds(launcher, tmp_path):
    tiny = {"train__steps": 30, "train__evaluate_every": 10, "train__log_every": 10, "train__checkpoint_every": 30}
    process = launcher.run(
        tmp_path / "run", config="configs/induction.py:smoke", model__width=16, optimizer__warmup_steps=2, **tiny
    )
    assert process.returncode == 0, process.err
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert 10 < found["phase"]["prefix_best_step"] < 30
    assert len(found["ci95"]["phase"]["prefix_best_step"]) == 2
    heads = found["induction"]["prefix"]
    assert {(layer, head) for layer in heads for head in heads[layer]} == {
        (f"layer_{layer}", f"head_{head}") for layer in (1, 2) for head in (1, 2, 3, 4)
    }
    assert {path.name for path in (tmp_path / "run" / "figures").glob("*.png")} == {"learning.png", "heads.png"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "step at which the best head" in page
