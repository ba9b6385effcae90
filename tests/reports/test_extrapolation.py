"""Figures and tables by length: bands, bars or rows, logarithmic axes, and orders of settings."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from attention_jax.reports.extrapolation import length_curves, order_table
from attention_jax.reports.page import Estimate, PValue

STEPS = [1, 2, 3]


def test_a_band_of_one_seed_is_its_line(tmp_path, drawn):
    nan = [np.nan] * 3
    length_curves({"t": {"a": (STEPS, [1.0, 0.0, 2.0], nan, nan)}}, None, tmp_path / "l.png")
    assert drawn["l"].axes[0].get_ylim()[0] > -0.1


def test_an_order_of_settings_has_intervals_in_one_column_and_the_best_of_each_group_in_bold():
    rows = [
        {"setting": "a", "mean": 3.0, "low": 2.0, "high": 4.0, "difference": {"mean": 1.0, "low": 0.5, "high": 1.5}},
        {"setting": "b", "mean": 2.0, "low": 1.0, "high": 3.0, "p_seeds": 0.04, "p_adjusted": 0.08},
    ]
    lost = [{"setting": "b", "mean": 3.0, "lost": 1, "seeds": 2}, {"setting": "a", "lost": 3, "seeds": 0}]
    orders, of_b = {"one": [*rows, lost[0]], "two": lost}, {"one": "b", "two": "b"}
    table = order_table(orders, ["one", "two"], "t", "setting", "BLEU", of_b)
    assert table.rows == [
        ("one", "a", Estimate(3.0, 2.0, 4.0), Estimate(1.0, 0.5, 1.5), None, None, ""),
        ("one", "b", Estimate(2.0, 1.0, 3.0), None, PValue(0.04), PValue(0.08), ""),
        ("one", "b", Estimate(3.0), None, None, None, "1 of 3 seeds"),
        ("two", "b", Estimate(3.0), None, None, None, "1 of 3 seeds"),
        ("two", "a", None, None, None, None, "3 of 3 seeds"),
    ]
    assert table.best == {(0, 2)}
    assert len(order_table({"one": rows}, ["one"], "t", "setting", "BLEU", of_b).columns) == 6
    assert order_table(orders, ["one"], "t", "setting", "BLEU", {"one": "b", "two": "a"}).note.startswith(
        "Means over seeds with 95% intervals. Differences are to each group's baseline (one: b; two: a)."
    )
    of_ratios = order_table({"one": [rows[0] | {"ratio": {"mean": 0.5}}]}, ["one"], "t", "setting", "perplexity", of_b)
    assert (of_ratios.columns[3], str(of_ratios.rows[0][3])) == ("ratio", "×0.5")
    assert of_ratios.note.endswith("Ratios are to b.")


@pytest.mark.parametrize("log_x", [False, True])
@pytest.mark.parametrize("count", [2, 9])
def test_many_lines_have_bars_side_by_side_and_few_have_bands(tmp_path, drawn, count, log_x):
    line = ([8, 16, 32], [1.0, 2.0, 3.0], [0.5, 1.5, 2.5], [1.5, 2.5, 3.5])
    series = {str(index): line for index in range(count)}
    figure = length_curves({"t": series}, None, tmp_path / "l.png", log_x=log_x)
    axis = drawn["l"].axes[0]
    bars = [one for one in axis.collections if isinstance(one, LineCollection)]
    assert (len(bars), len(axis.collections)) == ((9, 9) if count == 9 else (0, 2))
    for one in bars:
        np.testing.assert_allclose([bar[:, 1] for bar in one.get_segments()], np.stack(line[2:], axis=1))
    drawn["l"].canvas.draw()
    assert axis.get_xlim()[0] < 8 < 32 < axis.get_xlim()[1]
    assert axis.get_ylim()[0] <= 0.5 < 3.5 <= axis.get_ylim()[1]
    places = np.array([one.get_transform().transform(one.get_xydata())[:, 0] for one in axis.get_lines()])
    apart = np.diff(places, axis=0)
    np.testing.assert_allclose(apart, apart[0, 0], rtol=1e-6, atol=1e-6)
    assert (apart[0, 0] > 1) == (count == 9) == ("side by side" in figure.caption)


def test_more_lines_than_colours_are_rows_of_a_column_a_length(tmp_path, drawn):
    names = [f"setting {index}" for index in range(11)]
    ends = [0.5, 1.5, 2.5], [1.5, 2.5, 3.5]
    whole = {name: ([8, 16, 32], [index + 1.0, 2.0, 3.0], *ends) for index, name in enumerate(names)}
    short = {names[3]: ([16], [7.0], [6.0], [9.0])}
    figure = length_curves({"copy": whole, "sort": short}, 16, tmp_path / "l.png", ylabel="accuracy", caption="Of all.")
    axes = np.reshape(drawn["l"].axes, (2, 3))
    assert [axis.get_title() for axis in axes[0]] == ["8", "16", "32"]
    assert [label.get_text() for label in axes[0, 0].get_yticklabels()] == names
    first = [line.get_xydata().tolist() for line in axes[0, 0].lines]
    assert first == [part for index in range(11) for part in ([[0.5, index], [1.5, index]], [[index + 1.0, index]])]
    assert [len(axis.lines) for axis in axes[1]] == [0, 2, 0]
    assert [line.get_xydata().tolist() for line in axes[1, 1].lines] == [[[6.0, 3], [9.0, 3]], [[7.0, 3]]]
    assert [axis.spines["left"].get_linestyle() for axis in axes[0]] == ["-", "--", "-"]
    assert figure.caption == "Of all. A column a length, that of the trained length between dashed lines."
    long = {name: (range(99), *[np.ones(99)] * 3) for name in names}
    length_curves({"text": long}, None, tmp_path / "m.png")
    assert len(drawn["m"].axes[0].get_lines()) == 11


@pytest.mark.parametrize(("highest", "labels"), [(13.0, ["7", "8", "9", "10"]), (70.0, ["10", "20", "50"])])
def test_a_logarithmic_axis_has_numbers_to_read_it_by(tmp_path, drawn, highest, labels):
    heights = [7.0, highest / 2, highest]
    length_curves({"t": {"a": ([8, 16, 32], heights, heights, heights)}}, None, tmp_path / "l.png", log_y=True)
    axis = drawn["l"].axes[0]
    low, high = axis.get_ylim()
    found = [text for text in axis.yaxis.get_major_ticks() if low <= text.get_loc() <= high]
    assert [tick.label1.get_text() for tick in found] == labels
