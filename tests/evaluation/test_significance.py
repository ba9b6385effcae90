"""Tests of differences against SciPy's and sacreBLEU's own, and against their promise on data where nothing differs."""

import itertools
import math

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from scipy import stats

from attention_jax.evaluation.bleu import bleu_of_statistics, bleu_statistics
from attention_jax.evaluation.significance import (
    approximate_randomization,
    holm,
    paired_bootstrap,
    paired_t,
    seeds_needed,
    sign_flip,
)

DRAWS = 2000


def test_the_t_test_is_scipys(random):
    one, other = random.normal(size=(2, 6))
    assert paired_t(one, other) == pytest.approx(stats.ttest_rel(one, other).pvalue)
    assert math.isnan(paired_t([1.0], [2.0]))
    assert math.isnan(paired_t([1.0, 2.0], [2.0, 3.0]))
    assert paired_t([1.0, 2.0], [1.0, 2.0]) == 1


def test_every_sign_is_tried(random):
    differences = random.normal(size=7)
    means = [abs(np.mean(differences * signs)) for signs in itertools.product((1, -1), repeat=7)]
    expected = np.mean(np.array(means) >= abs(differences.mean()) - 1e-12)
    assert sign_flip(differences, np.zeros(7)) == expected
    assert sign_flip(np.arange(1, 4), np.zeros(3)) == 0.25  # 2^(1 - n), the least there is
    assert sign_flip(np.array([2, 2, 5, 7, 27]) / 100, np.array([5, 5, 1, 11, 21]) / 100) == 1  # their mean is 0
    many = random.normal(0.2, 1, size=40)
    assert sign_flip(many, np.zeros(40)) == pytest.approx(stats.ttest_1samp(many, 0).pvalue, abs=0.02)


@pytest.mark.parametrize("test", [paired_t, sign_flip])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_where_nothing_differs_one_in_twenty_is_found_at_most(random, test, n):
    found = np.mean([test(*random.normal(size=(2, n))) <= 0.05 for _ in range(DRAWS)])
    if n >= 10 or test is paired_t:
        assert found == pytest.approx(0.05, abs=0.015)
    else:
        assert found == 0  # 2^(1 - n) is more than .05


@pytest.mark.parametrize(("test", "share"), [(paired_bootstrap, 0.1), (approximate_randomization, 0.05)])
def test_of_sentences_too_and_sacrebleus_bootstrap_finds_twice_as_many(random, test, share, monkeypatch):
    monkeypatch.setattr("attention_jax.evaluation.significance.SHUFFLES", 1000)
    monkeypatch.setattr("attention_jax.evaluation.significance.RESAMPLES", 300)
    pairs = random.normal(size=(600, 2, 80, 1))
    found = np.mean([test(lambda sums: sums[..., 0], *pair) <= 0.05 for pair in pairs])
    assert found == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(("kind", "ours"), [("bs", paired_bootstrap), ("ar", approximate_randomization)])
def test_on_bleu_they_agree_with_sacrebleus(random, kind, ours):
    words = np.array(["the", "a", "man", "dog", "runs", "sleeps", "in", "park", ".", "big"])

    def corrupted(text, rate):
        return " ".join(random.choice(words) if random.random() < rate else word for word in text.split())

    references = [" ".join(random.choice(words, size=12)) for _ in range(150)]
    baseline = [corrupted(text, 0.35) for text in references]
    for rate in (0.35, 0.32, 0.30):
        system = [corrupted(text, rate) for text in references]
        named = [("baseline", baseline), ("system", system)]
        metric = BLEU(lowercase=True, force=True)
        _, scores = PairedTest(named, {"BLEU": metric}, [references], kind, n_samples=2000)()
        rows = [bleu_statistics(texts, [[text] for text in references]) for texts in (system, baseline)]
        assert ours(bleu_of_statistics, *rows) == pytest.approx(scores["BLEU"][1].p_value, abs=0.05)


def test_systems_that_say_the_same_do_not_differ(random):
    rows = random.normal(size=(50, 2))
    changed = rows.copy()
    changed[3] += 1
    total = lambda sums: sums.sum(-1)  # noqa: E731
    assert approximate_randomization(total, rows, rows) == 1
    assert paired_bootstrap(total, rows, rows) == 1
    assert approximate_randomization(total, changed, rows) == 1  # one sentence: as likely the other way round


def test_holm_is_the_step_down_of_bonferroni():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    adjusted = holm([0.5, math.nan, 0.02])
    assert adjusted[0] == 0.5
    assert math.isnan(adjusted[1])
    assert adjusted[2] == pytest.approx(0.04)


def test_holm_keeps_the_chance_of_any_false_finding(random):
    tables = random.normal(size=(DRAWS, 4, 12))
    found = [min(holm([paired_t(row, np.zeros(12)) for row in table])) <= 0.05 for table in tables]
    assert np.mean(found) <= 0.05 + 0.015


def test_the_seeds_that_a_table_needs_are_the_fewest():
    for comparisons in (1, 3, 10):
        n = seeds_needed(comparisons)
        assert comparisons * 2 ** (1 - n) <= 0.05 < comparisons * 2 ** (2 - n)
