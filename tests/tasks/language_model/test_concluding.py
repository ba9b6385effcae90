"""What a sweep over positions concludes where a seed has a value that is not finite."""

import numpy as np
import pytest
from ml_collections import ConfigDict

from attention_jax.reports.conclusion import FinishedCell
from attention_jax.tasks.language_model.extrapolation import conclude


def test_a_perplexity_that_is_not_finite_is_lost_and_the_others_are_compared(tmp_path):
    name = "perplexity"
    config = ConfigDict({"data": {"source": "text", "length": 16}, "sweep": {"metric": ""}})

    def cell(setting, *heights):
        members = [{"curves": {name: {"16": 1.5, "32": one}}, "area": {name: one}} for one in heights]
        result = {"status": "finished", "seeds": [0, 1], "members": members, "curves": members[0]["curves"]}
        return FinishedCell(config, tmp_path, result, setting, "", "rotary")

    np.savez(tmp_path / "encoding.npz")
    np.savez(tmp_path / "attention.npz", **{"16": np.ones((1, 1, 4, 4))})
    cells = [cell("rotary", 2.0, 2.5), cell("alibi", None, 3.0)]
    found = conclude(config, cells, tmp_path, {"rotary": "red", "alibi": "black"})
    first, second = found.result["by_length"]["32"]
    assert (first["setting"], first["seeds"], "lost" in first) == ("rotary", 2, False)
    assert (second["setting"], second["seeds"], second["lost"]) == ("alibi", 1, 1)
    assert second["ratio"] == pytest.approx({"mean": 3.0 / 2.5})  # of the seed that both have
    assert found.result["orders"]["published"] == {}
