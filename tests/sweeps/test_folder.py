"""A sweep's folder."""

import dataclasses
import json

import pytest
from sweeper import Sweeper, sweep_of

from attention_jax.errors import UserError
from attention_jax.launcher import experiments
from attention_jax.sweeps.folder import stored_config


def test_a_sweep_of_a_version_with_fewer_settings_has_the_defaults_of_the_others(tmp_path):
    older = {"population": {"halving": 0.5, "rungs": [10]}, "sweep": {"metric": "validation.loss"}}
    (tmp_path / "config.json").write_text(json.dumps({"experiment": "e", "seeds": [0], "precision": {}, **older}))
    found = stored_config(tmp_path)
    assert (found.population.halving, found.population.rungs) == (0.5, (10,))
    assert (found.population.halving_seeds, found.population.across) == (0, False)
    assert (found.sweep.metric, found.sweep.baseline) == ("validation.loss", "")


def test_a_program_takes_the_steps_of_its_config_or_what_the_experiment_says_and_no_default(tmp_path):
    sweep = sweep_of(tmp_path, {1e-3: {0: 1.0}}, steps=30)
    (program,) = sweep.plan.programs
    assert sweep.steps(program) == 30
    untrained = program._replace(config={"experiment": "kernel_regression"})
    with pytest.raises(AttributeError, match="train"):
        sweep.steps(untrained)
    for name in ("kernel_regression", "sequence_layers"):
        assert dataclasses.replace(sweep, experiment=experiments.load(name)).steps(untrained) == 1


def test_a_sweep_whose_data_have_changed_is_refused_and_goes_on_once_they_are_back(tmp_path):
    sweeper = Sweeper(tmp_path)
    before, rates = sweeper.pairs.read_text(), [{"optimizer.learning_rate": 1e-3, "seeds": (0,)}]
    (name,) = sweeper.plan(rates).plan.cells
    (tmp_path / "sweep" / "cells" / name).mkdir(parents=True)  # begun
    sweeper.pairs.write_text(before + "Go.\tVa !\n")
    for seed in (0, 1):
        with pytest.raises(UserError, match="the data of its cells, or the run that they start from, have changed"):
            sweeper.plan([{**rates[0], "seeds": (seed,)}])
    sweeper.pairs.write_text(before)
    assert name in sweeper.plan([*rates, {**rates[0], "seeds": (1,)}]).plan.cells
