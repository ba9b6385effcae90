"""Attention as explanation, launched on a finished tiny run, and refused where nothing can be told."""

import json

import pytest

CONFIG = "configs/explanation.py:smoke"
TINY = {"sentences": 4, "draws": 1, "steps": 3}
CORPUS = {
    "data.validation": 5,
    "data.test": 5,
    "model.kwargs.embedding": 8,
    "model.kwargs.hidden": 8,
    "optimizer.warmup_steps": 2,
    "train.steps": 16,
    "train.evaluate_every": 16,
    "train.checkpoint_every": 16,
}
NUMBER = "alignment_error_rate"


@pytest.mark.slow
def test_every_seed_of_a_run_is_explained_with_intervals_and_drawn(launcher, tmp_path):
    overrides = {name.replace(".", "__"): value for name, value in CORPUS.items()}
    trained = launcher.run(tmp_path / "luong", config="configs/nmt.py:luong_dot,embedded", seeds="(0,1)", **overrides)
    assert trained.returncode == 0, trained.err
    process = launcher.run(tmp_path / "run", config=CONFIG, runs=tmp_path / "luong", **TINY)
    assert process.returncode == 0, process.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    of_run = json.loads((tmp_path / "luong" / "result.json").read_text())
    assert result["of_runs"] == {"luong": {"code": of_run["code"]}}
    found = result["models"]["luong"]
    assert found["seeds"] == [0, 1]
    for name in ("attention", "gradients", "erasure"):
        low, high = found["ci95"]["alignment"][name][NUMBER]
        assert low <= found["alignment"][name][NUMBER] <= high
    assert -1 <= found["correlation"]["attention and gradients"]["kendall_tau"] <= 1
    assert 0 <= found["adversary"]["0.1"]["total_variation"] <= 0.1
    figures = {path.name for path in (tmp_path / "run" / "figures").glob("*.png")}
    assert figures == {"measures.png", "adversary.png", "maps.png"}
    assert "Adversarial weights" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_without_true_alignments_is_refused_by_name(finished, tmp_path):
    launcher, run, _ = finished
    process = launcher.run(tmp_path / "run", config=CONFIG, runs=run, **TINY)
    assert process.returncode == 1
    assert f"{run}: its corpus does not tell which words translate which." in process.err


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({}, "config.runs='': name the folders"),
        ({"runs": "a/one,b/one"}, "two folders of one name"),
        ({"runs": "one", "epsilons": "(0.0,)"}, "config.epsilons=(0.0,)"),
        ({"runs": "one", "steps": 0}, "config.steps=0"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_work(launcher, tmp_path, overrides, said):
    process = launcher.run(tmp_path / "run", config=CONFIG, **overrides)
    assert process.returncode == 1
    assert said in process.err
    assert not (tmp_path / "run").exists()
