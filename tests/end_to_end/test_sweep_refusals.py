"""Sweeps that cannot be meant are refused before anything runs."""

import pytest
from sweeper import RATES

from attention_jax.errors import UserError
from attention_jax.runs.folder import Run
from attention_jax.sweeps.planning import _require_before_the_end
from attention_jax.sweeps.space import grid


def test_a_value_that_cannot_be_used_is_refused_before_anything_runs(sweeper):
    with pytest.raises(UserError, match="config.optimizer.learning_rate=-1.0: needs 0 or more"):
        sweeper.run(grid("optimizer.learning_rate", (1e-2, -1.0)))
    assert not (sweeper.folder / "sweep").exists()


@pytest.mark.parametrize(("key", "value"), [("model.kwargs.output", "deepest"), ("evaluate.beams", 0)])
def test_a_value_that_a_model_refuses_is_refused_before_data_are_read(sweeper, key, value):
    sweeper.pairs.unlink()
    with pytest.raises(UserError, match=rf"{key.rpartition('.')[2]}.*{value}"):
        sweeper.run(grid(key, (value,)))
    assert not (sweeper.folder / "sweep").exists()


def test_another_base_config_is_refused(sweeper):
    sweeper.plan(RATES)
    with pytest.raises(UserError, match=r"train.steps: 24 there, 12 now"):
        sweeper.run(RATES, train__steps=12)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"sweep__engine": "cloud"}, "config.sweep.engine='cloud': choose one of 'inline', 'processes', 'slurm'"),
        ({"sweep__match": "time"}, "config.sweep.match='time': choose"),
        ({"population__how": "both"}, "config.population.how='both': choose"),
        (
            {"population__halving": 0.5},
            "config.population.halving=0.5 drops settings at rungs: set config.population.rungs too",
        ),
        ({"population__dynamic": ("train.steps",)}, "'train.steps' is static"),
        ({"sweep__baseline": "optimizer.learning_rate=7"}, "no setting has these values; the first has"),
        ({"sweep__metric": "validation.beauty"}, "config.sweep.metric='validation.beauty': no metric of that name"),
        ({"sweep__metric": "validation.loss,validation.beauty"}, "'validation.beauty': no metric of that name"),
        ({"sweep__metric": "book.mean"}, "no finished cell has 'book.mean'"),
        ({"sweep__within": ("data.tsk",)}, "config.sweep.within=.*: no cell has a 'data.tsk'"),
        (
            {"population__halving_seeds": 1},
            "config.population.halving_seeds=1 is for successive halving: set config.population.halving too",
        ),
        (
            {"population__halving": 0.5, "population__rungs": (1,), "population__halving_seeds": 1},
            "halving_seeds=1: needs 0 or more, and less than the 1 seeds",
        ),
        (
            {"population__halving": 0.5, "population__rungs": (1,)},
            r"config.population.rungs=\(1,\): 1 is not before the end of training, config.train.steps=1",
        ),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(sweeper, overrides, message):
    one = {"optimizer__warmup_steps": 1, "train__steps": 1, "train__evaluate_every": 1}
    with pytest.raises(UserError, match=message):
        sweeper.run(grid("optimizer.learning_rate", (1e-2,)), **one, **overrides)


def test_nothing_is_dropped_at_steps_of_what_is_not_trained_in_steps():
    with pytest.raises(UserError, match=r"config.population.rungs=\(10,\): nothing is trained in steps here"):
        _require_before_the_end((10,), [{"seeds": (0,)}])


def test_what_changes_the_objective_is_not_compared_by_the_objective(sweeper):
    rates = grid("optimizer.dropout", (0.0, 0.5))
    with pytest.raises(UserError, match=r"differ in optimizer.dropout, which changes what train.loss.*train.nll"):
        sweeper.run(rates, train__best_by="train.loss")
    assert not (sweeper.folder / "sweep").exists()
    sweeper.run(rates, train__best_by="train.nll", train__steps=12)
    by_dropout = {row["dropout"]: float(row["train.nll"]) for row in sweeper.table()}
    (line,) = [x for x in Run(sweeper.cells()[0], 0.0).metrics() if x["step"] == 12]
    assert line["train.nll"] in by_dropout.values()
    with pytest.raises(UserError, match="which changes what train.loss"):
        sweeper.run(rates, train__best_by="train.nll", train__steps=12, mode="report", sweep__metric="train.loss")


@pytest.mark.parametrize(
    ("space", "metric", "better"),
    [
        (grid("data.min_count", (1, 6)), "validation.perplexity_per_word", "validation.bleu"),
        (grid("evaluate.bleu_tokens", ("13a", "moses")), "test.bleu", "validation.loss"),
    ],
)
def test_what_does_not_measure_the_same_of_all_settings_is_refused_with_what_does(sweeper, space, metric, better):
    (key,) = {key for one in space for key in one}
    with pytest.raises(UserError, match=rf"differ in {key}, which changes what {metric} .*metric={better}\."):
        sweeper.run(space, sweep__metric=metric)
    assert not (sweeper.folder / "sweep").exists()


def test_one_seed_of_a_setting_is_in_one_cell(sweeper):
    with pytest.raises(UserError, match="seed 1 of one setting is in two cells"):
        sweeper.run(grid("seeds", ((0, 1), (1, 2))))


def test_where_slurm_is_not_it_says_so(sweeper, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match="there is no sbatch on this machine's PATH"):
        sweeper.run(RATES, sweep__engine="slurm")


@pytest.mark.parametrize("mode", ["evaluate", "translate"])
def test_a_mode_of_one_run_names_a_sweeps_cells(sweeper, mode):
    sweeper.plan(RATES)
    with pytest.raises(UserError, match=r"sweep: a sweep, none of whose cells is done. Go on with it: --mode=sweep"):
        sweeper.run(RATES, mode=mode)
    done = sweeper.folder / "sweep" / "cells" / "0a1b"
    done.mkdir(parents=True)
    (done / "result.json").write_text("{}")
    with pytest.raises(UserError, match=rf"--mode={mode} is of one run: .* 1 finished cells, 0a1b: --workdir={done}"):
        sweeper.run(RATES, mode=mode)
