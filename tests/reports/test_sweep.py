"""What a sweep's page says: its sentence, tables and figures, of numbers that are known."""

import itertools

import numpy as np
import pytest

from attention_jax.evaluation.comparison import Measured, baselines_of, compare, interval
from attention_jax.reports.figures import colours
from attention_jax.reports.names import names_of
from attention_jax.reports.page import Estimate, PValue
from attention_jax.reports.pivots import grid_tables
from attention_jax.reports.sweep import (
    Answer,
    Curve,
    Setting,
    cost_tables,
    difference_tables,
    notes_of,
    palette_of,
    said,
    settings_table,
)
from attention_jax.reports.sweep import tested as told_of
from attention_jax.reports.sweep_figures import figures_of

RATES, DROPOUTS, SIZES, SEEDS = (0.1, 0.2, 0.5), (0.0, 0.3), (8, 16), 4
STEPS = [1, 2, 3]


def answered(name, values, overrides, groups=None, lost=()):
    """An answer of values `[settings, seeds]`, of which the first setting of a group is the baseline."""
    named = names_of([{key: value for key, value in one.items() if key != "data.task"} for one in overrides])
    groups = groups or [""] * len(named)
    measured = [
        Measured(*of, dict(enumerate(own)), (9,) * (index in lost))
        for index, (*of, own) in enumerate(zip(named, groups, values.tolist(), strict=True))
    ]
    compared = compare(name, measured, baselines_of(measured, dict.fromkeys(groups, named[0])))
    settings = [
        Setting(one, {"cost.flops": 1e9 * (2 + n), "cost.parameters": 10.0}, [], curve(name, row), None, (f"cell{n}",))
        for n, (one, row) in enumerate(zip(overrides, values, strict=True))
    ]
    return Answer(compared, settings, ())


def curve(name, row):
    means = [row.mean() + 1] * len(STEPS)
    return Curve(name, STEPS, means, means, means)


def grid(random, *levels, low=1.0):
    """Values of every combination of some levels, with the overrides of each."""
    keys = ("optimizer.learning_rate", "optimizer.dropout", "model.width")
    overrides = [dict(zip(keys, one, strict=False)) for one in itertools.product(*levels)]
    return low + random.random((len(overrides), SEEDS)), overrides


def cells_of(table):
    return [cell for row in table.rows for cell in row if isinstance(cell, Estimate)]


def test_settings_come_best_first_with_intervals_in_one_column_and_compact_p_values(random):
    values, overrides = grid(random, RATES)
    table = settings_table([answered("validation.loss", values, overrides)])
    assert table.columns == ("learning_rate", "validation.loss", "", "difference", "p, Holm")
    order = np.argsort(values.mean(1))
    assert [row[0] for row in table.rows] == [RATES[index] for index in order]
    assert [row[1] for row in table.rows] == [Estimate(*interval("validation.loss", values[index])) for index in order]
    assert table.best == {(0, 1)}
    baseline = next(row for row in table.rows if "baseline" in row[2])
    assert baseline[3:] == (None, None)
    assert all(isinstance(row[4], PValue) for row in table.rows if row is not baseline)
    assert f"over {SEEDS} seeds" in table.title


def test_the_first_of_several_metrics_orders_and_chooses_and_the_others_are_columns(random):
    values, overrides = grid(random, RATES)
    lead, other = answered("validation.loss", values, overrides), answered("test.bleu", values * 9, overrides)
    shared = lead.comparison
    other = other._replace(comparison=other.comparison._replace(order=shared.order, best=shared.best))
    table = settings_table([lead, other])
    assert table.columns == ("learning_rate", "validation.loss", "test.bleu", "")
    assert table.best == {(0, 1), (0, 2)}
    np.testing.assert_allclose([row[2].mean for row in table.rows], 9 * np.sort(values.mean(1)))
    first, second = difference_tables([lead, other])
    assert (first.folded, second.folded, first.title[:15], second.title[:9]) == (
        False,
        False,
        "validation.loss",
        "test.bleu",
    )
    assert second.columns == ("learning_rate", "difference", "p, t", "p, flips", "p, Holm")
    assert len(second.rows) == len(RATES) - 1
    text = said([lead, other])[0]
    assert f"{RATES[np.argmin(values.mean(1))]} has the best validation.loss of 3 settings over {SEEDS} seeds" in text
    assert "By other metrics: test.bleu " in text
    assert notes_of([lead, other])[0] == "Bold: what is best by validation.loss."


def test_costs_are_a_table_of_their_own_and_nothing_where_none_is_known(random):
    answer = answered("validation.loss", *grid(random, RATES))
    (table,) = cost_tables(answer)
    assert table.columns == ("learning_rate", "parameters", "training FLOPs")
    assert not set(table.columns[1:]) & {*settings_table([answer]).columns}
    unknown = [setting._replace(cost={}) for setting in answer.settings]
    assert cost_tables(answer._replace(settings=unknown)) == []


def test_a_difference_that_is_shown_is_said_so_and_one_that_is_not_too():
    overrides = [{"a": 1}, {"a": 2}]
    apart = np.array([[2.0, 2.1, 2.2, 2.3], [1.0, 1.1, 1.19, 1.3]])
    assert "(a 1) is -1.002 [" in said([answered("test.loss", apart, overrides)])[0]
    assert "], shown (p <.001, Holm)." in said([answered("test.loss", apart, overrides)])[0]
    alike = np.array([[2.0, 2.1, 2.2, 2.3], [2.2, 1.9, 2.1, 2.2]])
    assert "not shown to be more than chance (p = " in said([answered("test.loss", alike, overrides)])[0]
    assert said([answered("test.loss", apart[::-1], overrides)])[0].endswith("It is the baseline.")
    assert "a 1; a 2 share the best" in said([answered("test.loss", apart[[0, 0]], overrides)])[0]
    assert "none is called the best" in said([answered("test.loss", apart, overrides, lost=(0, 1))])[0]
    assert "without a test" in said([answered("test.loss", apart[:, :1], overrides)])[0]


def test_what_is_shown_of_these_models_alone_is_told_from_what_is_shown_of_others():
    answer = answered("test.bleu", np.array([[20.0, 21.0, 22.0], [26.0, 24.0, 22.0]]), [{"a": 1}, {"a": 2}])
    row = answer.comparison.rows[1]._replace(p_sentences=0.01, p_adjusted=0.01)
    assert told_of(answer.comparison, row).endswith(
        "], shown of these trained models, not of other seeds (p = .010, Holm)"
    )
    apart = row._replace(difference=row.difference._replace(low=0.1))
    assert told_of(answer.comparison, apart).endswith("], shown (p = .010, Holm)")
    alone = apart._replace(p_seeds=None, p_flips=None)  # of one seed, whose interval is over sentences
    assert "], shown of these trained models, not of other seeds" in told_of(answer.comparison, alone)


def test_what_intervals_are_over_is_told_with_a_baseline_and_without(random):
    sentences = {seed: random.integers(1, 9, (6, 10)) for seed in (0, 1)}
    one = Measured("a", values={0: 20.0, 1: 21.0}, statistics=sentences, sentences="x")
    two = one._replace(setting="b")

    def noted(other, baseline):
        compared = compare("test.bleu", [one, other], [baseline] * 2)
        return compared, notes_of([Answer(compared, [], ())])

    assert noted(two, 0)[1][0].startswith("Intervals are over seeds and sentences, those of differences too.")
    assert noted(two, None)[1] == ["Intervals are over seeds and sentences."]
    mixed, (note,) = noted(two._replace(statistics={}), 0)
    assert note.startswith("Intervals are over seeds, ")
    assert mixed.rows[0].value == interval("test.bleu", [20.0, 21.0])


def test_no_setting_that_lost_seeds_is_on_a_front_or_a_line_of_the_best(random, drawn, tmp_path):
    values, overrides = grid(random, RATES)
    values[1] -= 1  # the least loss, of a setting that lost a seed
    answer = answered("validation.loss", values, overrides, lost=(1,))
    figures_of([answer], tmp_path, palette_of(answer))
    (front,) = [line for line in drawn["pareto"].axes[0].lines if line.get_linestyle() == "--"]
    (best,) = [line for line in drawn["slices"].axes[0].lines if line.get_color() == "grey"]
    assert values[1].mean() not in front.get_ydata()
    assert [*best.get_xdata()] == [RATES[0], RATES[2]]


def test_where_nothing_is_better_no_figure_says_what_is_the_best(random, drawn, tmp_path):
    values, overrides = grid(random, RATES)
    answer = answered("validation.monotonicity", values, overrides)
    figures = figures_of([answer], tmp_path, palette_of(answer))
    assert not [one.caption for one in figures if "best" in one.caption or "beats" in one.caption]
    assert "grey" not in {line.get_color() for stem in ("slices", "pareto") for line in drawn[stem].axes[0].lines}


def test_a_figure_that_is_cut_says_so_and_has_the_line_of_its_baseline(random, drawn, tmp_path):
    values, overrides = grid(random, [round(0.01 * n, 2) for n in range(1, 71)])
    values[0] += 9  # the baseline is last
    answer = answered("validation.loss", values, overrides)
    (first, *_) = figures_of([answer], tmp_path, palette_of(answer))
    assert "; of 70 settings the first 64; the dashed line" in first.caption
    (line,) = [line for line in drawn["settings"].axes[0].lines if line.get_linestyle() == "--"]
    assert line.get_xdata()[0] == pytest.approx(values[0].mean())


def test_perplexities_are_told_by_ratios_which_a_note_explains():
    overrides = [{"a": 1}, {"a": 2}]
    perplexities = np.array([[20.0, 21.0, 22.0, 23.0], [10.0, 10.5, 11.1, 11.5]])
    answer = answered("test.perplexity", perplexities, overrides)
    table = settings_table([answer])
    assert table.columns == ("a", "test.perplexity", "", "ratio", "p, Holm")
    assert str(table.rows[0][3]).startswith("×0.501")
    assert "Its ratio to the baseline (a 1) is ×0.501" in said([answer])[0]
    assert "], shown (p <.001, Holm)." in said([answer])[0]
    (of_ratios,) = difference_tables([answer])
    assert (of_ratios.title, of_ratios.columns[1]) == ("test.perplexity: ratios to the baseline", "ratio")
    assert any(note.startswith("A ratio is") for note in notes_of([answer]))
    plain = answered("test.loss", perplexities, overrides)
    assert not any(note.startswith("A ratio") for note in notes_of([plain]))
    assert "By other metrics: test.perplexity 10.76 [9.76, 11.87], ratio ×0.501" in said([plain, answer])[0]


def test_a_pivot_of_two_factors_has_each_setting_as_the_table_has_it(random):
    values, overrides = grid(random, RATES, DROPOUTS)
    answer = answered("validation.loss", values, overrides)
    (pivot, effects), notes = grid_tables([answer], ())
    assert notes == []
    assert pivot.columns == ("learning_rate ↓  dropout →", "0", "0.3")
    assert [row[0] for row in pivot.rows] == ["0.1", "0.2", "0.5"]
    shown = np.array([cell.mean for cell in cells_of(pivot)]).reshape(3, 2)
    np.testing.assert_allclose(shown, values.mean(1).reshape(3, 2))
    ((row, column),) = pivot.best
    assert shown[row, column - 1] == shown.min()
    assert effects.title == "Main effects"


def test_pivots_and_main_effects_of_three_factors_are_those_of_a_group_by(random):
    values, overrides = grid(random, RATES, DROPOUTS, SIZES)
    array = values.reshape(3, 2, 2, SEEDS)
    tables, _ = grid_tables([answered("validation.loss", values, overrides)], ())
    (first, effects, *others) = tables
    assert [table.folded for table in tables] == [False, False, True, True]
    for table, rest in zip((first, *others), (2, 1, 0), strict=True):
        by_seed = array.mean(rest).reshape(-1, SEEDS)
        assert cells_of(table) == [
            pytest.approx(Estimate(*interval("validation.loss", seeds)), abs=1e-12) for seeds in by_seed
        ]
    expected = [
        interval("validation.loss", np.take(array, level, axis).mean((0, 1)))
        for axis in range(3)
        for level in range(array.shape[axis])
    ]
    assert [row[2] for row in effects.rows] == [pytest.approx(Estimate(*one), abs=1e-12) for one in expected]
    assert [row[0] for row in effects.rows] == ["learning_rate", "", "", "dropout", "", "width", ""]
    means = [
        [one.mean for one in expected[:3]],
        [one.mean for one in expected[3:5]],
        [one.mean for one in expected[5:]],
    ]
    assert {row for row, _ in effects.best} == {np.argmin(means[0]), 3 + np.argmin(means[1]), 5 + np.argmin(means[2])}


def test_where_a_grid_has_a_hole_it_is_said_and_no_mean_is_over_it(random):
    values, overrides = grid(random, RATES, DROPOUTS)
    tables, notes = grid_tables([answered("validation.loss", values[:-1], overrides[:-1])], ())
    assert tables == []
    assert notes[0].startswith("The settings are not every combination of learning_rate, dropout")
    assert grid_tables([answered("validation.loss", *grid(random, RATES))], ()) == ([], [])


def test_a_level_of_which_a_seed_was_lost_is_never_the_best(random):
    values, overrides = grid(random, RATES, DROPOUTS)
    values[3] = 0.01
    (pivot, effects), _ = grid_tables([answered("validation.loss", values, overrides, lost=(3,))], ())
    assert (1, 2) not in pivot.best
    assert not {(1, 2), (4, 2)} & {*effects.best}


def test_groups_are_columns_each_with_its_own_best(random):
    values, overrides = grid(random, RATES, low=0.0)
    doubled = [{**one, "data.task": task} for task in ("copy", "sort") for one in overrides]
    both = np.concatenate([values, 1 - values])
    answer = answered("area.token_accuracy", both, doubled, ["copy"] * 3 + ["sort"] * 3)
    (table,), notes = grid_tables([answer], ("data.task",))
    assert notes == []
    assert table.title == "area.token_accuracy by task"
    assert table.columns == ("setting", "copy", "sort")
    assert table.best == {(np.argmax(values.mean(1)), 1), (np.argmin(values.mean(1)), 2)}
    assert [line.partition(":")[0] for line in said([answer])] == ["copy", "sort"]


def test_a_setting_has_one_colour_in_all_figures(random, drawn, tmp_path):
    values, overrides = grid(random, RATES)
    answer = answered("validation.perplexity", values, overrides)
    palette = palette_of(answer)
    figures = figures_of([answer], tmp_path, palette)
    assert {figure.path.stem for figure in figures} == {"settings", "slices", "pareto", "curves"} == {*drawn}
    assert all(figure.path.with_suffix(".pdf").exists() for figure in figures)
    names = ["learning_rate 0.1", "learning_rate 0.2", "learning_rate 0.5"]
    assert palette == colours(names)
    for stem in ("curves", "pareto"):
        lines = {line.get_label(): line.get_color() for line in drawn[stem].axes[0].lines}
        assert {name: lines[name] for name in names} == palette
    best_last = [names[index] for index in np.argsort(-values.mean(1))]
    dots = [line for line in drawn["settings"].axes[0].lines if line.get_marker() == "o"]
    assert [dot.get_color() for dot in dots] == [palette[name] for name in best_last]
    assert {line.get_color() for line in drawn["slices"].axes[0].lines} == {"grey", *palette.values()}
    for stem, scales in {
        "settings": ("log", "linear"),
        "curves": ("linear", "log"),
        "slices": ("linear", "log"),
    }.items():
        axis = drawn[stem].axes[0]
        assert (axis.get_xscale(), axis.get_yscale()) == scales  # a perplexity's is the logarithm


def test_no_legend_lies_on_a_panel(random, drawn, tmp_path):
    values, overrides = grid(random, RATES, DROPOUTS, SIZES)
    answer = answered("validation.loss", values, overrides)
    figures_of([answer], tmp_path, palette_of(answer))
    for stem in ("curves", "pareto"):
        figure = drawn[stem]
        figure.canvas.draw()
        (legend,) = figure.legends
        assert not legend.get_window_extent().overlaps(figure.axes[0].bbox)
        assert figure.axes[0].bbox.height > 2 * figure.dpi  # it has taken nothing from its panel


def test_curves_of_a_perplexity_are_on_the_logarithm_whatever_their_range(random, drawn, tmp_path):
    values, overrides = grid(random, RATES)
    answer = answered("validation.perplexity", values, overrides)
    steep = Curve("validation.perplexity", STEPS, [400.0, 20.0, 1.5], [100.0, 4.0, 1.0], [900.0, 90.0, 3.0])
    answer = answer._replace(settings=[setting._replace(curve=steep) for setting in answer.settings])
    figures_of([answer], tmp_path, palette_of(answer))
    low, high = drawn["curves"].axes[0].get_ylim()
    assert 0.5 < low <= 1
    assert 900 <= high < 2000


def test_a_setting_that_sets_nothing_else_is_a_table_too(random):
    answer = answered("validation.loss", 1 + random.random((1, SEEDS)), [{"train.init_from": ""}])
    table = settings_table([answer])
    assert table.columns == ("validation.loss", "")
    assert table.best == {(0, 0)}
