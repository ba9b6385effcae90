"""What cells say together: by setting, group and seed."""

import numpy as np
import pytest
from scipy import stats

from attention_jax.evaluation import comparison
from attention_jax.evaluation.by_group import OfSeed, answer, gather, measured_of, measures_of, orders_by_length

HEIGHTS = {("none", "copy"): (0.2, 0.4, 0.3), ("alibi", "copy"): (0.7, 0.8, 0.9), ("none", "sort"): (1.0, 0.9, 0.8)}

OF_NONE = dict.fromkeys(("copy", "sort", "16", "32"), "none")


def cell(setting, group, seed, value, status="finished"):
    return setting, group, {"seeds": [seed], "status": status, "members": [{"value": value}]}


def cells():
    return [cell(*of, seed, value) for of, values in HEIGHTS.items() for seed, value in enumerate(values)]


def gathered(found, measure="token_accuracy"):
    return gather(found, lambda member: OfSeed({measure: {"16": member["value"], "32": 0.0}}, member["value"]))


def ranks(scores):
    return comparison.ranks(measures_of(scores)[0], measured_of(scores))


def scores():
    return gathered(cells())


def test_settings_are_compared_within_their_task():
    found = {("none", "16"): 0.9, ("none", "32"): 0.1, ("alibi", "16"): 0.5, ("alibi", "32"): 0.6}
    orders = answer(gathered([cell(*of, 0, value) for of, value in found.items()]), OF_NONE)["orders"]
    assert {group: [row["setting"] for row in orders[group]] for group in ("16", "32")} == {
        "16": ["none", "alibi"],
        "32": ["alibi", "none"],
    }


def test_differences_are_paired_by_seed_and_the_best_comes_first():
    order = answer(scores(), OF_NONE)["orders"]["copy"]
    assert [row["setting"] for row in order] == ["alibi", "none"]
    assert order[0]["difference"]["mean"] == pytest.approx(0.5)
    half = 4.302653 * np.std([0.5, 0.4, 0.6], ddof=1) / np.sqrt(3)
    assert order[0]["difference"]["high"] == pytest.approx(0.5 + half)
    assert "difference" not in order[1]


def test_a_seed_that_diverged_ranks_last_and_so_does_its_setting():
    lost = gathered([*cells()[:5], cell("alibi", "copy", 2, None, "diverged")])
    np.testing.assert_allclose(ranks(lost)["alibi"], [1, 1, 0.5])
    assert [row["setting"] for row in answer(lost, OF_NONE)["orders"]["copy"]] == ["none", "alibi"]
    assert answer(lost, OF_NONE)["orders"]["copy"][1]["lost"] == 1


def test_ranks_are_over_the_tasks_that_all_settings_have():
    assert comparison.shared_by_all(measured_of(scores())) == (["copy"], [0, 1, 2])
    np.testing.assert_allclose(ranks(scores())["alibi"], [1, 1, 1])
    of_loss = gathered(cells(), measure="perplexity")  # of which less is better
    np.testing.assert_allclose(ranks(of_loss)["alibi"], [0.5, 0.5, 0.5])


def test_curves_have_every_length_with_its_interval():
    curve = answer(scores(), {})["curves"]["alibi"]["copy"]
    assert curve["length"] == [16, 32]
    assert curve["mean"] == pytest.approx([0.8, 0.0])
    assert curve["low"][0] < 0.8 < curve["high"][0]


def test_at_each_length_differences_are_paired_and_their_tests_corrected_together():
    heights = {"none": (0.2, 0.4, 0.3), "alibi": (0.7, 0.8, 0.9)}
    curve = lambda value: {"token_accuracy": {"8": value, "16": value / 2}}  # noqa: E731
    found = [
        cell(setting, "copy", seed, value) for setting, values in heights.items() for seed, value in enumerate(values)
    ]
    of_lengths = gather(found, lambda member: OfSeed(curve(member["value"]), 0.0))
    orders = orders_by_length(of_lengths, OF_NONE)
    assert list(orders) == ["copy, 8", "copy, 16"]
    for group, scale in (("copy, 8", 1.0), ("copy, 16", 0.5)):
        best, other = orders[group]
        assert (best["setting"], other["setting"]) == ("alibi", "none")
        assert best["difference"]["mean"] == pytest.approx(0.5 * scale)
        assert best["p_seeds"] == pytest.approx(stats.ttest_rel(heights["alibi"], heights["none"]).pvalue)
        assert best["p_adjusted"] == pytest.approx(2 * best["p_seeds"])


def test_a_setting_without_a_length_is_left_out_there_and_a_lost_seed_is_told():
    curves = {"none": {"8": 0.5, "16": 0.1}, "learned": {"8": 0.6}}
    found = [cell(setting, "", seed, curve) for setting, curve in curves.items() for seed in (0, 1)]
    found.append(cell("none", "", 2, None, "diverged"))
    orders = orders_by_length(gather(found, lambda one: OfSeed({"token_accuracy": one["value"]}, 0.0)), {"": "none"})
    assert {group: [row["setting"] for row in rows] for group, rows in orders.items()} == {
        "8": ["learned", "none"],
        "16": ["none"],
    }
    assert [row.get("lost", 0) for row in orders["8"]] == [0, 1]


def test_every_group_has_a_baseline_of_its_own():
    found = answer(scores(), {"copy": "alibi", "sort": "none"})["orders"]
    assert found["copy"][1]["difference"]["mean"] == pytest.approx(-0.5)
    by_length = orders_by_length(scores(), {"copy": "alibi", "sort": "none"})
    assert by_length["copy, 16"][1]["difference"]["mean"] == pytest.approx(-0.5)


def test_what_was_not_finite_is_lost_where_it_was_measured_and_nowhere_else():
    curves = [{"8": 0.5, "16": 0.1}, {"8": None, "16": 0.3}]
    found = gather([cell("a", "", seed, curve) for seed, curve in enumerate(curves)], lambda one: of(one["value"]))
    assert answer(found, {})["curves"]["a"][""]["mean"] == pytest.approx([0.5, 0.2])
    assert answer(found, {})["orders"][""][0]["lost"] == 1
    assert [rows[0].get("lost", 0) for rows in orders_by_length(found, {}).values()] == [1, 0]


def test_a_setting_that_lost_every_seed_is_told_after_the_others():
    lost = gathered([*cells()[:3], cell("alibi", "copy", 0, None, "diverged")])
    assert answer(lost, OF_NONE)["orders"]["copy"][1] == {"setting": "alibi", "seeds": 0, "group": "copy", "lost": 1}


def of(curve):
    return OfSeed({"token_accuracy": curve}, curve["8"])
