"""What is drawn and told of searches."""

import numpy as np
import pytest

from attention_jax.reports.page import Estimate
from attention_jax.reports.search import regret_figure, trials_figure, winner_table


@pytest.fixture
def drawn(monkeypatch):
    """Every figure of matplotlib that was saved as a PNG."""
    from matplotlib.figure import Figure

    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: kept.append(self))
    return kept


@pytest.mark.parametrize(("name", "best"), [("validation.loss", [3, 2, 2, 2, 1]), ("validation.bleu", [3, 3, 3, 5, 5])])
def test_the_best_so_far_never_gets_worse_and_what_was_dropped_has_no_value(name, best, drawn, tmp_path):
    trials_figure(name, [3.0, 2.0, None, 5.0, 1.0], 2, tmp_path / "trials.png")
    lines = {line.get_label(): line for line in drawn[0].axes[0].lines}
    assert [*lines["the best so far"].get_ydata()] == best
    assert [*lines["a trial"].get_xdata()] == [1, 2, 4, 5]
    assert [*lines["dropped or diverged"].get_xdata()] == [3]


def test_a_line_of_regret_is_a_method_in_its_interval(drawn, tmp_path):
    means = {"random": {"4": 2.0, "8": 1.0}, "tpe": {"4": 2.0, "8": 0.5}}
    intervals = {
        name: {budget: [mean - 0.1, mean + 0.2] for budget, mean in own.items()} for name, own in means.items()
    }
    regret_figure(means, intervals, "nats", tmp_path / "regret.png")
    (axis,) = drawn[0].axes
    assert {line.get_label(): [*line.get_ydata()] for line in axis.lines} == {"random": [2, 1], "tpe": [2, 0.5]}
    band = axis.collections[1].get_paths()[0].vertices
    assert {tuple(np.round(point, 6)) for point in band} >= {(4, 1.9), (8, 0.4), (8, 0.7), (4, 2.2)}


def test_the_winners_table_has_fresh_seeds_beside_those_that_chose():
    table = winner_table("a", {"loss": Estimate(2.0)}, {"loss": Estimate(1.0), "bleu": None})
    assert table.rows == [("loss", Estimate(2.0), Estimate(1.0)), ("bleu", None, None)]
