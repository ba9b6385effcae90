"""The engine: what it finds, and how often what it says is so."""

import math

import numpy as np
import pytest
from scipy import stats

from attention_jax.evaluation.bleu import bleu_of_statistics, bleu_statistics
from attention_jax.evaluation.comparison import Interval, Measured, baselines_of, compare, notes, ranks, records
from attention_jax.evaluation.significance import paired_t, sign_flip

DRAWS = 2000


def measured(setting, values, group="", lost=()):
    return Measured(setting, group, dict(enumerate(values)), lost)


def test_a_difference_is_paired_by_seed_with_students_interval_and_its_p_values(random):
    ours, theirs = random.normal(size=(2, 6))
    found = compare("validation.loss", [measured("a", theirs), measured("b", [*ours, 9.0])], (0, 0))
    difference, paired = found.rows[1].difference, ours - theirs
    expected = stats.t.interval(0.95, 5, paired.mean(), stats.sem(paired))
    np.testing.assert_allclose(difference, [paired.mean(), *expected])
    assert found.rows[1].p_seeds == paired_t(ours, theirs)
    assert found.rows[1].p_flips == sign_flip(ours, theirs)
    assert found.rows[0].difference is None


def test_an_interval_of_a_difference_is_without_zero_exactly_where_the_t_test_finds_it(random):
    for shift in random.normal(size=50):
        pair = [measured("a", random.normal(size=4)), measured("b", random.normal(shift, size=4))]
        row = compare("area.token_accuracy", pair, (0, 0)).rows[1]
        assert (row.difference.low > 0 or row.difference.high < 0) == (row.p_seeds < 0.05)


def test_an_interval_of_a_difference_covers_it_as_often_as_it_says(random):
    def covers():
        level = random.normal(size=4)  # what a seed does to both
        sides = [measured(str(shift), level + random.normal(shift, 0.1, size=4)) for shift in (0.0, 1.0)]
        low, high = compare("validation.loss", sides, (0, 0)).rows[1].difference[1:]
        return low < 1.0 < high

    assert np.mean([covers() for _ in range(DRAWS)]) == pytest.approx(0.95, abs=0.015)


def test_perplexities_are_compared_as_their_losses_are_and_the_difference_is_a_ratio(random):
    nats = random.normal(3.0, 0.4, size=(3, 5))
    of_losses, of_perplexities = (
        compare(name, [measured(setting, row) for setting, row in zip("abc", values, strict=True)], (0, 0, 0))
        for name, values in (("validation.loss", nats), ("validation.perplexity", np.exp(nats)))
    )
    assert (of_losses.contrast, of_perplexities.contrast) == ("difference", "ratio")
    for plain, ratio in zip(of_losses.rows[1:], of_perplexities.rows[1:], strict=True):
        np.testing.assert_allclose(ratio.difference, np.exp(plain.difference))
        for test in ("p_seeds", "p_flips", "p_adjusted"):
            assert getattr(ratio, test) == pytest.approx(getattr(plain, test))
    written = records(of_perplexities)
    assert [[*row["ratio"]] for row in written if "ratio" in row] == [["mean", "low", "high"]] * 2
    assert not any("difference" in row for row in written)


def test_a_ratio_is_the_same_whichever_of_a_skewed_metric_s_settings_is_the_baseline():
    sides = [measured("a", [1.0, 2.0, 30.0]), measured("b", [10.0, 2.2, 280.0])]
    forth, back = (compare("test.perplexity", pair, (0, 0)).rows[1] for pair in (sides, sides[::-1]))
    np.testing.assert_allclose(np.reciprocal(forth.difference), np.take(back.difference, [0, 2, 1]))
    assert forth.p_seeds == pytest.approx(back.p_seeds)
    one = compare("test.perplexity", [measured("a", [4.0]), measured("b", [6.0])], (0, 0)).rows[1].difference
    assert one.mean == pytest.approx(1.5)
    assert one.low is None


WORDS = np.array(["the", "a", "man", "dog", "runs", "sleeps", "in", "park", ".", "big"])


def translated(random, references, rate):
    texts = [
        " ".join(random.choice(WORDS) if random.random() < rate else word for word in text.split())
        for text in references
    ]
    return bleu_statistics(texts, [[text] for text in references])


def of_sentences(setting, statistics):
    values = {seed: float(bleu_of_statistics(rows.sum(0))) for seed, rows in enumerate(statistics)}
    return Measured(setting, values=values, statistics=dict(enumerate(statistics)), sentences="these")


def test_a_difference_of_bleu_has_an_interval_over_seeds_and_sentences_and_one_seed_over_sentences_alone(random):
    references = [" ".join(random.choice(WORDS, size=12)) for _ in range(80)]
    worse, better = ([translated(random, references, rate) for _ in range(3)] for rate in (0.4, 0.2))
    found = compare("test.bleu", [of_sentences("worse", worse), of_sentences("better", better)], (0, 0))
    over_both, values = found.rows[1].difference, [list(row.measured.values.values()) for row in found.rows]
    over_seeds = compare("test.bleu", [measured("worse", values[0]), measured("better", values[1])], (0, 0)).rows[1]
    assert over_both.mean == pytest.approx(over_seeds.difference.mean)
    assert 0 < over_both.low < over_seeds.difference.low  # sentences make it wider
    assert found.rows[1].p_sentences < 0.05
    assert found.rows[1].p_adjusted == found.rows[1].p_sentences
    one = compare("test.bleu", [of_sentences("worse", worse[:1]), of_sentences("better", better[:1])], (0, 0)).rows[1]
    assert one.p_seeds is None
    assert one.difference.low < one.difference.mean < one.difference.high


def test_one_sentence_has_no_interval_and_no_test(random):
    sides = [of_sentences(name, [translated(random, ["a b c d e f"], rate)]) for name, rate in (("a", 0.4), ("b", 0.0))]
    rows = compare("test.bleu", sides, (0, 0)).rows
    assert [(row.value.low, row.value.high) for row in rows] == [(None, None)] * 2
    assert (rows[1].difference.low, rows[1].p_sentences, rows[1].p_bootstrap, rows[1].p_adjusted) == (None,) * 4


def test_sentences_are_compared_with_the_same_ones_alone(random):
    references = [" ".join(random.choice(WORDS, size=12)) for _ in range(20)]
    sides = [of_sentences(name, [translated(random, references, 0.3)] * 2) for name in "ab"]
    row = compare("test.bleu", [sides[0], sides[1]._replace(sentences="others")], (0, 0)).rows[1]
    assert row.p_sentences is None
    assert row.p_adjusted == row.p_seeds


def test_the_best_are_those_that_tie_and_lost_no_seed_in_each_task():
    found = compare(
        "test.bleu",
        [
            measured("a", [30.0, 32.0], "one"),
            measured("b", [32.0, 30.0], "one"),
            measured("c", [90.0], "one", lost=(1,)),
            measured("d", [], "one", lost=(0, 1)),
            measured("a", [1.0, 1.0], "two"),
            measured("b", [2.0, 2.0], "two"),
        ],
        indices := (0, 0, 0, 0, 4, 4),
    )
    assert found.best == {0, 1, 5}
    assert found.order == (0, 1, 2, 3, 5, 4)
    assert found.baselines == indices
    assert [row.value is None for row in found.rows] == [False, False, False, True, False, False]


def test_one_value_has_no_interval_and_one_pair_a_difference_alone():
    found = compare("test.bleu", [measured("a", [30.0]), measured("b", [31.0])], (0, 0))
    assert found.rows[1].value == Interval(31.0)
    assert found.rows[1].difference == Interval(1.0)
    assert records(found)[0] == {"setting": "b", "seeds": 1, "mean": 31.0, "difference": {"mean": 1.0}}
    assert notes(found) == ["One seed: no interval over seeds, and no test over them."]


@pytest.mark.parametrize(
    ("baseline", "seeds", "said"),
    [
        ([1.0, 2.0], 6, ["With 2 seeds the sign-flip test cannot go below p = 0.5: to find one of 1 differences"]),
        ([1.0] * 6, 6, []),
        ([1.0] * 7, 5, ["With 5 seeds the sign-flip test cannot go below p = 0.062"]),
    ],
)
def test_what_a_sign_flip_can_find_is_told_by_the_seeds_that_both_have(baseline, seeds, said):
    found = notes(compare("test.bleu", [measured("a", baseline), measured("b", [3.0] * seeds)], (0, 0)))
    assert len(found) == len(said)
    assert all(own.startswith(wanted) for own, wanted in zip(found, said, strict=True))


def test_of_differences_over_unequal_numbers_of_seeds_the_fewest_are_told():
    rows = [measured("a", [1.0] * 6), measured("b", [2.0] * 6), measured("c", [3.0] * 3)]
    (note,) = notes(compare("test.bleu", rows, (0, 0, 0)))
    assert note.startswith("With 3 seeds in common, which are the fewest of a difference, the sign-flip test")


def test_a_baseline_by_name_is_that_of_the_same_task_where_it_is_there():
    rows = [measured("b", [1.0], "one"), measured("a", [1.0], "one"), measured("b", [1.0], "two")]
    assert baselines_of(rows, {"one": "a", "two": "a"}) == [1, 1, None]
    assert baselines_of(rows, {"one": "a", "two": "b"}) == [1, 1, 2]
    assert baselines_of(rows, {}) == [None] * 3


def test_settings_that_tie_share_their_rank_and_a_lost_seed_is_last():
    rows = [
        measured("a", [3.0, 3.0]),
        measured("b", [3.0, 1.0]),
        measured("c", [1.0], lost=(1,)),
    ]
    found = ranks("test.bleu", rows)
    np.testing.assert_allclose([found[name] for name in "abc"], [[1 / 1.5, 1], [1 / 1.5, 1 / 2], [1 / 3, 1 / 3]])


def test_the_best_perplexity_is_the_one_whose_ratio_says_so():
    settings = [Measured("a", values={0: 10, 1: 10}), Measured("b", values={0: 5, 1: 19})]
    found = compare("validation.perplexity", settings, [None, 0])
    assert found.order == (1, 0)
    assert found.best == {1}
    means = [row.value.mean for row in found.rows]
    assert found.rows[1].difference.mean == pytest.approx(means[1] / means[0])
    assert found.rows[1].difference.mean < 1


def test_a_value_that_is_not_finite_is_lost():
    settings = [Measured("a", values={0: 10, 1: math.inf}), Measured("b", values={0: 11, 1: 12})]
    found = compare("validation.perplexity", settings, [None, 0])
    assert found.rows[0].measured.lost == (1,)
    assert found.rows[0].value.mean == pytest.approx(10)
    assert (found.rows[1].p_seeds, found.rows[1].p_flips) == (None, None)
