"""What is lost by the rate of another width, on losses that are known."""

import math

import pytest
from ml_collections import ConfigDict

from attention_jax.reports.conclusion import FinishedCell
from attention_jax.tasks.language_model.transfer import _sentence, conclude, transferred

# Parabolas in the logarithm of the rate: of width 8 with the least loss at 2⁻⁴, of width 32 at 2⁻⁶.
RATES = [2.0**-power for power in range(8)]
LOSSES = {
    width: {rate: {seed: (math.log2(rate) + best) ** 2 + 0.25 * seed for seed in range(3)} for rate in RATES}
    for width, best in ((32, 6), (8, 4))
}


def test_the_best_rate_moves_by_the_distance_of_the_minima_and_its_transfer_costs_the_square():
    found = transferred(LOSSES)
    assert [found[width]["best"] for width in ("8", "32")] == [2.0**-4, 2.0**-6]
    assert found["8"]["steps"] == found["8"]["lost"] == (0, 0, 0)
    assert found["32"]["steps"] == (-2, -2, -2)
    assert found["32"]["lost"] == pytest.approx((4, 4, 4))
    assert found["32"]["loss"][0] == pytest.approx(0.25)


def test_a_rate_at_which_a_seed_diverged_is_nobodys_best_and_its_loss_is_no_number():
    losses = {8: LOSSES[8], 32: {**LOSSES[32], 2.0**-4: dict.fromkeys(range(3), math.inf)}}
    found = transferred(losses)["32"]
    assert found["best"] == 2.0**-6
    assert all(map(math.isnan, found["lost"]))


def test_a_width_of_which_a_seed_diverged_at_every_rate_has_no_best_and_lends_none():
    losses = {8: {rate: {**of_seed, 2: math.inf} for rate, of_seed in LOSSES[8].items()}, 32: LOSSES[32]}
    found = transferred(losses)
    assert math.isnan(found["8"]["best"])
    assert found["32"]["best"] == 2.0**-6
    assert all(map(math.isnan, (*found["8"]["loss"], *found["8"]["lost"], *found["32"]["lost"])))


def test_a_best_rate_at_an_end_of_the_grid_is_a_bound_and_is_said_to_be_one():
    narrow = {rate: LOSSES[8][rate] for rate in RATES[:5]}
    found = transferred({8: narrow, 32: {rate: LOSSES[32][rate] for rate in RATES[:5]}})
    assert [found[width]["bound"] for width in ("8", "32")] == ["≤", "≤"]
    assert [row["bound"] for row in transferred(LOSSES).values()] == ["", ""]
    highest = {8: LOSSES[8], 32: {rate: {0: -rate} for rate in RATES}}
    assert transferred(highest)["32"]["bound"] == "≥"
    assert "so that these are bounds" in _sentence("mup", transferred(highest))
    assert "bounds" not in _sentence("mup", transferred(LOSSES))
    own = {8: LOSSES[8], 32: {rate: LOSSES[32][rate] for rate in RATES[:5]}}  # others were tried for width 8 alone
    assert transferred(own)["32"]["bound"] == "≤"


def test_of_a_parametrization_with_one_width_nothing_is_said(tmp_path):
    def cell(name, width, rate):
        model = {"parametrization": name, "width": width}
        config = ConfigDict({"model": model, "optimizer": {"learning_rate": rate}})
        result = {"status": "finished", "seeds": [0], "members": [{"validation": {"loss": rate}}]}
        return FinishedCell(config, tmp_path, result, f"{name} {width} {rate}", "", "")

    places = (("standard", 64), ("mup", 64), ("mup", 128))
    found = conclude(ConfigDict(), [cell(*place, rate) for place in places for rate in (0.1, 0.2)], tmp_path, {})
    assert found.result["transfer"].keys() == {"standard", "mup"}
    assert [said.split(":")[0] for said in found.said] == ["mup"]


def test_a_best_rate_is_of_seeds_that_all_have_a_loss():
    losses = {8: LOSSES[8], 32: {**LOSSES[32], 2.0**-6: {0: -1.0, 1: math.inf, 2: -1.0}}}
    assert transferred(losses)["32"]["best"] in (2.0**-5, 2.0**-7)


def test_steps_are_of_the_grid_of_all_rates_and_a_seed_that_always_diverged_has_none():
    narrow = {rate: LOSSES[8][rate] for rate in RATES if rate != 2.0**-5}
    wide = {rate: {**of_seed, 2: math.inf} for rate, of_seed in LOSSES[32].items()}
    assert transferred({8: narrow, 32: LOSSES[32]})["32"]["steps"] == (-2, -2, -2)
    assert transferred({8: LOSSES[8], 32: wide})["32"]["steps"] == (-2, -2, -2)
