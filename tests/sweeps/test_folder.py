"""A sweep's folder."""

import json

from attention_jax.sweeps.folder import stored_config


def test_a_sweep_of_a_version_with_fewer_settings_has_the_defaults_of_the_others(tmp_path):
    older = {"population": {"halving": 0.5, "rungs": [10]}, "sweep": {"metric": "validation.loss"}}
    (tmp_path / "config.json").write_text(json.dumps({"experiment": "e", "seeds": [0], "precision": {}, **older}))
    found = stored_config(tmp_path)
    assert (found.population.halving, found.population.rungs) == (0.5, (10,))
    assert (found.population.halving_seeds, found.population.across) == (0, False)
    assert (found.sweep.metric, found.sweep.baseline) == ("validation.loss", "")
