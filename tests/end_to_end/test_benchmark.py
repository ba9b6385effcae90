"""The benchmark as a user starts it, small: its rows, how costs grow, its page, and what is left out."""

import json
import re
import sys
from types import SimpleNamespace

import pytest

from attention_jax.errors import UserError
from attention_jax.launcher import experiments
from attention_jax.tasks.benchmark.rounds import Row
from configs import benchmark as configs
from experiments import benchmark

SMALL = {
    "rounds": 2,
    "seconds": 0.01,
    "attention.length": 64,
    "kernel_regression.points": 300,
    "kernel_regression.blocks": (4, 16),
    "kernel_regression.kernels": ("gaussian", "boxcar"),
    "scaling.tokens": (8, 16, 32),
    "scaling.rows": (2, 4, 8),
    "scaling.layers": (1, 2, 3),
    "scaling.members": (1, 2, 3),
    "scaling.devices": (2, 4),
    "corpora.pairs": (1000, 2000, 4000),
}
CASES = {
    "train.cases.transformer_small.vocabulary": 100,
    "train.cases.transformer_small.batch": 4,
    "decode.vocabulary": 100,
    "decode.settings": ((2, 1), (2, 2)),
    "decode.words": 4,
    **{
        f"{case}.model.kwargs.{side}_layers": 1
        for case in ("train.cases.transformer", "train.cases.transformer_small", "decode", "scaling.case")
        for side in ("encoder", "decoder")
    },
}


def result_of(launcher, workdir, variant, overrides):
    named = {name.replace(".", "__"): value for name, value in overrides.items()}
    ended = launcher.run(workdir, config=f"configs/benchmark.py:{variant}", **named)
    assert ended.returncode == 0, ended.err
    return json.loads((workdir / "result.json").read_text()), ended


def test_rows_are_printed_kept_and_drawn(launcher, tmp_path):
    asked = {name: value for name, value in SMALL.items() if name.partition(".")[0] not in ("corpora",)}
    result, ended = result_of(launcher, tmp_path / "w", "attention,kernel_regression", asked)
    rows = result["rows"]
    assert {row["part"] for row in rows} == {"attention", "kernel_regression"}
    for row in rows:
        assert all(value > 0 or row["unit"] == "MB" for value in row["rounds"]["ours"])
        assert row["what"] in ended.out
    timed = [row for row in rows if row["others"]]
    assert {row["best"] for row in timed} == {"reference", "NumPy"}
    assert all(row["ratio"][1] <= row["ratio"][0] <= row["ratio"][2] for row in timed)
    assert (tmp_path / "w" / "table.md").read_text() in ended.out
    assert "Measured side by side" in (tmp_path / "w" / "report.html").read_text()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("parts", ("training",), "config.parts: no part 'training': choose of train, decode"),
        ("gpu.parts", ("train",), "config.gpu.parts: no part 'train': choose of attention, training, members"),
        ("rounds", 0, "config.rounds=0: needs 1 or more"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_its_key(key, value, message):
    config = configs.get_config()
    config.update_from_flattened_dict({key: value})
    with pytest.raises(UserError, match=re.escape(message)):
        experiments.load("benchmark").check(config)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("torch_train.py: no such model."), "torch_train.py: no such model."),
        (
            RuntimeError("RESOURCE_EXHAUSTED: out of memory\nof the device"),
            "RuntimeError: RESOURCE_EXHAUSTED: out of memory",
        ),
    ],
)
def test_a_part_that_fails_takes_no_other_with_it(monkeypatch, tmp_path, capsys, error, told):
    def failing(config, tools):
        yield Row("train", "first", "s", [1.0], {})
        raise error

    def second(config, tools):
        assert "first" in (tmp_path / "table.md").read_text()
        yield Row("decode", "second", "s", [2.0], {})

    monkeypatch.setitem(benchmark.PARTS, "train", failing)
    monkeypatch.setitem(benchmark.PARTS, "decode", second)
    run = SimpleNamespace(own=tmp_path, subfolder=lambda name: tmp_path / name)
    found = benchmark.measure(configs.get_config("train,decode"), run)
    assert [row["what"] for row in found["rows"]] == ["first", "second"]
    assert f"train  the rest left out: {told}\n" in capsys.readouterr().err


@pytest.mark.slow
def test_every_part_measures_what_is_here_and_says_what_is_not(launcher, tmp_path):
    parts = ("train", "decode", "start", "sweep", "corpora", "scaling", "gpu")
    result, ended = result_of(launcher, tmp_path / "w", ",".join(parts), {**SMALL, **CASES, "peers": sys.executable})
    assert {row["part"] for row in result["rows"]} == {"train", "decode", "corpora"}
    for line in ("start  bahdanau: left out", "sweep  left out: name its corpus", "gpu  left out"):
        assert line in ended.err
    growths = {growth["what"]: growth["exponent"][0] for growth in result["growths"]}
    assert growths["a training step over data: bytes of collectives' arrays"] == pytest.approx(0, abs=0.05)
    assert (tmp_path / "w" / "figures" / "growth.png").exists()


def test_what_is_measured_again_starts_anew(monkeypatch, tmp_path):
    (tmp_path / "measured/sweep/cells").mkdir(parents=True)

    def sweep(config, tools):
        yield Row("sweep", f"{len([*tools.folder.glob('sweep/cells')])} found", "s", [1.0], {})

    def subfolder(name):
        (tmp_path / name).mkdir(exist_ok=True)
        return tmp_path / name

    monkeypatch.setitem(benchmark.PARTS, "sweep", sweep)
    run = SimpleNamespace(own=tmp_path, subfolder=subfolder)
    assert benchmark.measure(configs.get_config("sweep"), run)["rows"][0]["what"] == "0 found"
