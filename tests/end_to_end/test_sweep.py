"""Sweeps of tiny runs: every cell is what it is alone, whatever is killed, added, broken or side by side."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support import ROOT
from sweeper import RATES, SMALL, TINY, Sweeper, rows_of

from attention_jax.errors import UserError
from attention_jax.launcher import experiments
from attention_jax.runs.code import Code
from attention_jax.runs.config import flatten, nested
from attention_jax.runs.folder import Run, hold, read_config
from attention_jax.sweeps import folder, planning
from attention_jax.sweeps.space import grid, product, seeds
from attention_jax.sweeps.working import work
from configs import kernel_regression, nmt

MEASURED = ("seconds", "cost.seconds", "cost.step_seconds", "cost.tokens_per_second")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A sweep that is done."""
    sweeper = Sweeper(tmp_path_factory.mktemp("done"))
    sweeper.run(RATES)
    return sweeper


@pytest.fixture
def swept(done, tmp_path, capsys):
    """A copy of it, which a test may change."""
    shutil.copytree(done.folder / "sweep", tmp_path / "sweep", symlinks=True)
    return Sweeper(tmp_path, done.pairs)


def numbers(result):
    flat = flatten(result)
    is_clock = lambda key: key in MEASURED or key.startswith("goodput.")  # noqa: E731
    return {key: v for key, v in flat.items() if isinstance(v, (int, float)) and not is_clock(key)}


@pytest.mark.slow
@pytest.mark.parametrize("model", SMALL)
def test_a_cell_is_what_it_is_alone(sweeper, model):
    for how in ("loop", "vmap"):
        sweeper.run(grid("optimizer.learning_rate", (1e-2, 3e-3)), how, model=model, population__how=how)
    cell, rounded = (sweeper.cells(how)[0] for how in ("loop", "vmap"))
    assert cell.name == rounded.name
    alone = sweeper.alone(read_config(cell))
    ours, nearly, theirs = (json.loads((path / "result.json").read_text()) for path in (cell, rounded, alone))
    assert numbers(ours) == numbers(theirs)
    assert (cell / "predictions.test.txt").read_bytes() == (alone / "predictions.test.txt").read_bytes()
    assert nearly["validation"]["loss"] == pytest.approx(theirs["validation"]["loss"], rel=1e-4)
    steps = [[line["step"] for line in Run(path, 0.0).metrics()] for path in (cell, rounded, alone)]
    assert steps[0] == steps[1] == steps[2]


def test_kernel_regression_side_by_side_is_what_it_is_alone_to_rounding(sweeper):
    config = kernel_regression.get_config()
    config.draws, config.learned.steps, config.estimators = 3, 3, ("kernel", "learned")
    space = product(grid("kernel.width", (0.2, 0.5)), grid("data.noise", (0.1, 0.4)), seeds(3))
    sweeper.run(space, config=config)
    for cell in sweeper.cells()[:4]:
        own = nested(flatten(json.loads((cell / "config.json").read_text())))
        experiment = experiments.load("kernel_regression")
        (alone,) = experiment.together(experiment.open(own, cell), "loop").finish([own], [_NoRun()])
        ours = numbers(json.loads((cell / "result.json").read_text()))
        theirs = numbers(alone)
        assert {k: ours[k] for k in theirs} == pytest.approx(theirs, rel=1e-5)
    assert len(sweeper.table()) == 4


class _NoRun:
    profile = None


@pytest.mark.slow
def test_started_again_nothing_runs_and_with_more_seeds_only_they_do(swept):
    before = {cell.name: (cell / "result.json").stat().st_mtime_ns for cell in swept.cells()}
    table = (swept.folder / "sweep" / "table.csv").read_bytes()
    swept.run(RATES)
    assert {cell.name: (cell / "result.json").stat().st_mtime_ns for cell in swept.cells()} == before
    assert (swept.folder / "sweep" / "table.csv").read_bytes() == table
    swept.run(product(grid("optimizer.learning_rate", (1e-2, 3e-3)), seeds(3)))
    after = {cell.name: (cell / "result.json").stat().st_mtime_ns for cell in swept.cells()}
    assert len(after) == 6
    assert {name: after[name] for name in before} == before


@pytest.mark.slow
def test_a_failed_cell_stops_no_other_and_is_listed_at_the_end(sweeper):
    space = grid("train.init_from", ("nowhere", ""))
    with pytest.raises(UserError, match=r"1 of 2 cells failed, 0 are missing:\n .*nowhere.* holds no run"):
        sweeper.run(space)
    results = sweeper.results()
    assert results["{'train.init_from': ''}"]["status"] == "finished"
    assert results["{'train.init_from': 'nowhere'}"] is None
    assert [row["not counted"] for row in sweeper.table()] == ["", "1 failed"]


@pytest.mark.parametrize("how", ["loop", pytest.param("vmap", marks=pytest.mark.slow)])
def test_a_cell_that_diverges_is_reported_and_the_others_go_on(sweeper, how, capsys):
    sweeper.run(grid("optimizer.learning_rate", (1e30, 1e-2)), population__how=how, optimizer__clip_norm=1e30)
    results = sweeper.results()
    lost = results["{'optimizer.learning_rate': 1e+30}"]
    assert lost["status"] == "diverged"
    assert 1 <= lost["step"] < 24
    assert results["{'optimizer.learning_rate': 0.01}"]["status"] == "finished"
    assert "not finite at step" in capsys.readouterr().err
    assert [row["not counted"] for row in sweeper.table()] == ["", "1 diverged"]


@pytest.mark.slow
def test_a_result_that_cannot_be_read_is_made_again(swept):
    path = swept.cells()[1] / "result.json"
    before = numbers(json.loads(path.read_text()))
    path.write_text(path.read_text()[:50])
    swept.run(RATES)
    assert numbers(json.loads(path.read_text())) == before


@pytest.mark.slow
def test_cells_that_trained_together_and_lost_their_logs_have_them_again(sweeper):
    space = grid("optimizer.learning_rate", (1e-2, 3e-3))
    sweeper.run(space, population__how="vmap")
    logs = {cell / "metrics.jsonl": (cell / "metrics.jsonl").read_text() for cell in sweeper.cells()}
    before = sweeper.results()
    assert len(set(logs.values())) == 2
    for path in logs:
        path.unlink()
        (path.parent / "result.json").unlink()
    sweeper.run(space, population__how="vmap")
    assert {path: path.read_text() for path in logs} == logs
    assert [numbers(result) for result in sweeper.results().values()] == [numbers(old) for old in before.values()]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_halving_drops_the_worst_settings_with_all_their_seeds(sweeper, how):
    space = product(grid("optimizer.learning_rate", (1e-2, 1e-6)), seeds(2))
    halving = {"population__halving": 0.5, "population__rungs": (12,)}
    sweeper.run(space, population__how=how, **halving)
    ends = {key: result["status"] for key, result in sweeper.results().items()}
    assert [end for key, end in ends.items() if "1e-06" in key] == ["dropped"] * 2
    assert list(ends.values()).count("finished") == 2
    sweeper.run(product(grid("optimizer.learning_rate", (1e-2,)), seeds(2)), "whole", population__how=how)
    ours, theirs = sweeper.results(), sweeper.results("whole")
    kept = [key for key, end in ends.items() if end == "finished"]
    sweeper.run(space, population__how=how, **halving)  # again: the same are dropped
    assert {key: result["status"] for key, result in sweeper.results().items()} == ends
    for key in kept:
        assert ours[key]["validation"]["loss"] == pytest.approx(theirs[key]["validation"]["loss"], rel=1e-4)


@pytest.mark.slow
def test_settings_of_all_programs_are_ranked_together_where_that_is_asked(sweeper):
    rates = {8: (1e-2, 5e-3), 12: (1e-6, 1e-7)}
    space = [{"model.kwargs.hidden": h, "optimizer.learning_rate": rate} for h in rates for rate in rates[h]]
    halving = {"population__halving": 0.5, "population__rungs": (12,)}

    def dropped(workdir, **more):
        sweeper.run(space, workdir, **halving, **more)
        ends = [result["status"] for result in sweeper.results(workdir).values()]
        return [end == "dropped" for end in ends]

    assert dropped("apart") == [False, True, False, True]
    assert dropped("together", population__across=True) == [False, False, True, True]
    assert dropped("together", population__across=True) == [False, False, True, True]  # and again


@pytest.mark.slow
def test_another_code_version_is_listed_and_not_mixed_unless_told(swept, monkeypatch):
    before = folder.current_code(experiments.load("nmt"), swept.config())
    changed = Code("0" * 12, {**before.files, "attention_jax/ops/scoring.py": "0"})
    for room in (folder, planning):
        monkeypatch.setattr(room, "current_code", lambda *asked: changed)
    told = "its 4 cells, 4 of them done, were made by other code; changed since: attention_jax/ops/scoring.py.*any_code"
    with pytest.raises(UserError, match=told):
        swept.run(RATES)
    swept.run(product(grid("optimizer.learning_rate", (1e-2, 3e-3)), seeds(3)), sweep__any_code=True)
    names = [cell.name for cell in swept.cells()]
    assert sum(name.endswith("-" + "0" * 12) for name in names) == 2
    assert len(names) == 6


@pytest.mark.slow
def test_a_worker_leaves_what_another_process_holds(sweeper):
    planned = sweeper.plan(RATES)
    program = planned.plan.programs[0]
    taken = program.waves[1][0]
    with hold(planned.path / "waves" / f"{program.name}-1"):
        work(planned)
    assert sum(result is None for result in sweeper.results().values()) == 1
    assert not (planned.cell(taken) / "result.json").exists()


def test_a_population_that_does_not_fit_goes_in_waves_and_says_so(sweeper, monkeypatch, capsys):
    monkeypatch.setattr(planning, "free_memory", lambda: 1)
    sweeper.plan(RATES, population__how="vmap")
    assert "4 cells share a program: waves of 1, which is what memory takes" in capsys.readouterr().err
    plan = sweeper.plan(RATES, "most", population__how="vmap", population__most=3).plan
    assert [len(wave) for wave in plan.programs[0].waves] == [3, 1]


@pytest.mark.slow
def test_variants_are_matched_in_flops_within_a_hundredth(sweeper):
    sweep = sweeper.plan(grid("model.kwargs.hidden", (8, 16)), sweep__match="flops", train__steps=200)
    experiment, flops = experiments.load("nmt"), []
    for name in sweep.plan.cells:
        session = experiment.open(sweep.config_of(name), sweep.data_of(sweep.programs[name]))
        flops.append(experiment.flops(session))
    assert flops[1] == pytest.approx(flops[0], rel=0.01)
    steps = [sweep.config_of(name).train.steps for name in sweep.plan.cells]
    assert steps[0] == 200 > steps[1]


def test_variants_are_matched_in_parameters_within_a_hundredth_with_the_vocabulary_that_the_data_have(sweeper):
    asked = {"sweep__match": "parameters", "sweep__match_by": "model.kwargs.embedding", "model__kwargs__embedding": 64}
    sweep = sweeper.plan(grid("model.kwargs.hidden", (8, 12)), data__vocabulary=10_000, **asked)
    experiment, names = experiments.load("nmt"), sweep.plan.cells
    opened = (experiment.open(sweep.config_of(name), sweep.data_of(sweep.programs[name])) for name in names)
    first, second = (session.cost["parameters"] for session in opened)
    assert second == pytest.approx(first, rel=0.01)
    sizes = [experiment.describe(sweep.config_of(name)).size for name in names]  # with as many words as there may be
    assert sizes[1] != pytest.approx(sizes[0], rel=0.01)


@pytest.mark.slow
def test_checkpoints_side_by_side_are_those_that_each_has_alone(sweeper):
    space = grid("optimizer.learning_rate", (1e-2, 3e-3))
    sweeper.run(space, population__how="vmap", evaluate__combine="average", evaluate__last=2, train__keep_last=2)
    for cell in sweeper.cells():
        assert sorted(path.name for path in (cell / "checkpoints").iterdir() if path.name.isdigit()) == ["18", "24"]


def test_a_plan_says_what_shares_a_program_and_how_long_it_will_take(sweeper, capsys, monkeypatch):
    monkeypatch.setattr(planning, "_timed_step", lambda *_: (60.0, 0))
    space = product(grid("model.kwargs.hidden", (16, 8)), grid("optimizer.dropout", (0.0, 0.1)))
    sweeper.run([{"optimizer.dropout": 0.2, "seeds": (1, 2, 3)}, *space], mode="plan", train__steps=12)
    printed = capsys.readouterr().out
    assert "model.kwargs.hidden=8" in printed  # which the first cell has as it is
    assert "model.kwargs.hidden=16" in printed
    assert "5 cells; about 84.0 minutes" in printed  # 12 steps of a minute of seven seeds
    assert not (sweeper.folder / "sweep").exists()  # it writes nothing


@pytest.mark.slow
def test_the_answer_compares_sentences_where_it_can(sweeper):
    sweeper.run(RATES, sweep__metric="test.bleu,test.chrf")
    first, second = sweeper.table()
    assert {first[""], second[""]} == {"best", "baseline"} or first[""] == "best, baseline"
    assert {"validation.bleu", "test.bleu", "test.bleu low", "test.bleu high", "test.chrf"} <= set(first)
    (other,) = rows_of(sweeper.folder / "sweep" / "tables" / "test_bleu_differences_to_the_baseline.csv")
    assert 0 < float(other["p, swapped"]) <= 1
    assert float(other["p, Holm"]) == float(other["p, swapped"])
    (costs, _) = rows_of(sweeper.folder / "sweep" / "tables" / "Costs_of_a_seed.csv")
    assert float(costs["training FLOPs"]) > 0
    text = (sweeper.folder / "sweep" / "table.md").read_text()
    assert "sign-flip test cannot go below p = 0.5" in text
    assert "\\begin{tabular}" in (sweeper.folder / "sweep" / "table.tex").read_text()
    page = (sweeper.folder / "sweep" / "report.html").read_text()
    assert page.count("data:image/png") >= 2
    assert '<a href="cells/' in page
    result = json.loads((sweeper.folder / "sweep" / "result.json").read_text())
    rates = [f"learning_rate {rate}" for rate in (1e-2, 3e-3)]
    assert {row["setting"] for row in result["orders"]["translation"]} == set(rates) == set(result["curves"])
    for rate in rates:
        curve = result["curves"][rate]["translation"]
        assert sorted(curve["length"]) == curve["length"]
        assert all(
            low <= mean <= high for mean, low, high in zip(*(curve[k] for k in ("mean", "low", "high")), strict=True)
        )


CONFIG = """
from attention_jax.sweeps.space import grid, product, seeds
from configs.nmt import get_config


def sweep():
    return product(grid("optimizer.learning_rate", (1e-2, 3e-3)), seeds(3))
"""


def command(sweeper, workdir, *flags):
    (sweeper.folder / "mine.py").write_text(CONFIG)
    values = {**TINY, **SMALL["bahdanau"], "data.path": sweeper.pairs}
    asked = [f"--config.{name}={value}" for name, value in values.items()]
    start = [sys.executable, "launch.py", f"--config={sweeper.folder / 'mine.py'}:bahdanau,tsv", "--mode=sweep"]
    environment = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    return functools.partial(
        subprocess.Popen,
        [*start, *asked, f"--workdir={sweeper.folder / workdir}", *flags],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("how", "kills"), [("loop", 2), ("vmap", 1)])
def test_killed_at_any_moment_and_started_again_the_table_is_the_same(sweeper, how, kills):
    flag = f"--config.population.how={how}"
    assert command(sweeper, "whole", flag)().wait() == 0
    start, random, done = command(sweeper, "cut", flag), np.random.default_rng(0), {}
    for _ in range(kills):
        process = start()
        time.sleep(float(random.uniform(2, 7)))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for path in (sweeper.folder / "cut").glob("cells/*/result.json"):
            assert done.setdefault(path, path.stat().st_mtime_ns) == path.stat().st_mtime_ns
    process = start()
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert all(path.stat().st_mtime_ns == at for path, at in done.items())
    assert sweeper.table("cut") == sweeper.table("whole")


@pytest.mark.slow
def test_worker_processes_leave_the_same_folder(sweeper):
    assert command(sweeper, "one")().wait() == 0
    process = command(sweeper, "two", "--config.sweep.engine=processes")()
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "validation.loss" in out
    assert sweeper.table("two") == sweeper.table("one")
    assert len(list((sweeper.folder / "two" / "logs").glob("worker_*.log"))) == 2


def test_the_space_of_a_config_file_is_chosen_by_name():
    assert len(nmt.sweep()) == 60
    models = nmt.sweep("models", "bahdanau,embedded")
    assert {cell["variant"].partition(",")[2] for cell in models} == {"embedded"}
    assert len(kernel_regression.sweep()) == 24 * 200
