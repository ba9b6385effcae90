"""Searches played over a table: what they pay, what they choose, and what that misses."""

import numpy as np
import pytest

pytest.importorskip("optuna", reason='needs Optuna: pip install "attention_jax[search]"')

from searched import DROPOUTS, RATES, write_table

from attention_jax.errors import UserError
from attention_jax.sweeps.regret import Table, Told, play, read_table, regrets, require_methods


def table_of(noise=0.0, evaluations=5):
    """A hill with its top at 1e-2 and .25, which every training climbs at the same pace."""
    points = [(rate, dropout) for rate in RATES for dropout in DROPOUTS]
    tops = np.array([-abs(np.log10(rate / 1e-2)) - 4 * abs(dropout - 0.25) for rate, dropout in points])
    shares = np.arange(1, evaluations + 1) / evaluations
    drawn = np.random.default_rng(0).normal(size=(len(points), 3, 1)) * noise
    return Table("validation.bleu", {"rate": RATES, "dropout": DROPOUTS}, tops[:, None, None] * shares + drawn)


def test_what_is_asked_for_gets_the_nearest_of_the_grid():
    table = table_of()
    assert table.space["rate"].log
    assert not table.space["dropout"].log
    points = [(rate, dropout) for rate in RATES for dropout in DROPOUTS]
    for asked in ((2e-3, 0.1), (4e-3, 0.4), (9e-2, 0.13), (1e-4, 0.5)):
        distances = [(abs(np.log(asked[0] / rate)), abs(asked[1] - dropout)) for rate, dropout in points]
        near = min(range(len(points)), key=lambda index: distances[index])
        assert points[table.nearest({"rate": asked[0], "dropout": asked[1]})][0] == points[near][0]
        assert abs(points[table.nearest({"rate": asked[0], "dropout": asked[1]})][1] - asked[1]) <= 0.125


@pytest.mark.parametrize("method", ["random", "tpe", "qmc", "tpe+median", "random+halving"])
def test_a_search_pays_for_what_it_is_told_and_keeps_within_its_budget(method):
    told = play(table_of(noise=0.1), method, 3, 24, 4)
    costs = [one.cost for one in told]
    assert costs == sorted(costs)
    assert costs[-1] <= 24
    if "+" not in method:
        assert costs == [4, 8, 12, 16, 20, 24]
    if "halving" in method:
        assert len(told) > 6  # what it drops, it does not pay for
    assert told == play(table_of(noise=0.1), method, 3, 24, 4)


def test_a_batch_that_ends_a_budget_exactly_belongs_to_it():
    table, paid = table_of(noise=0.3, evaluations=10), 0
    for seed in range(6):
        for one in play(table, "tpe+halving", seed, 16, 4):
            assert one.cost == round(10 * one.cost) / 10  # no sum of tenths is a number beside
            paid += 1
    assert paid > 20


def test_without_noise_what_is_found_only_gets_better_and_the_best_has_no_regret():
    table = table_of()
    found = regrets(table, play(table, "tpe", 0, 40, 4), 0, range(4, 44, 4))
    assert found == sorted(found, reverse=True)
    best = table.nearest({"rate": 1e-2, "dropout": 0.25})
    assert regrets(table, [Told(1.0, best)], 0, [0.5, 1.0])[1] == 0
    assert regrets(table, [Told(1.0, best)], 0, [0.5])[0] == pytest.approx(np.ptp(table.heights[:, 0, -1]))


def test_the_seed_that_chose_does_not_count():
    table = table_of(noise=0.5)
    heights = table.heights[:, :, -1]
    for seed in range(3):
        chosen = int(heights[:, seed].argmax())
        others = [np.mean([row[other] for other in range(3) if other != seed]) for row in heights]
        (found,) = regrets(table, [Told(1.0, chosen)], seed, [1])
        assert found == pytest.approx(max(others) - others[chosen])


def test_a_finished_sweep_is_a_table(tmp_path):
    table = read_table(write_table(tmp_path / "sweep"))
    assert table.heights.shape == (12, 2, 2)
    place = table.nearest({"rate": 1e-2, "dropout": 0.5})
    assert table.heights[place, :, -1] == pytest.approx([-0.005, -1.005])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cells: [*cells[1:], {**cells[0], "status": "diverged"}], "a cell did not finish"),
        (lambda cells: cells[1:], "needs every point of its grid"),
        (lambda cells: [*cells[1:], {**cells[0], "learning": cells[0]["learning"][:1]}], "not evaluated equally often"),
        (lambda cells: [{**cell, "overrides": {"kind": "a"}} for cell in cells], "no grid of numbers"),
    ],
)
def test_what_is_no_table_is_refused(change, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read_table(write_table(tmp_path / "sweep", change))
    with pytest.raises(UserError, match="holds no finished sweep"):
        read_table(tmp_path)


def test_a_method_that_there_is_not_is_refused():
    with pytest.raises(UserError, match="'tpe.best' is no method: tpe, random, qmc, gp, alone or as tpe"):
        require_methods(("random", "tpe+best"))
