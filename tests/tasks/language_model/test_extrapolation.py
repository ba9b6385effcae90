"""Encodings in order: beside what was published, whatever order a sweep has them in."""

import pytest

from attention_jax.evaluation.by_group import OfSeed
from attention_jax.tasks.language_model.extrapolation import PUBLISHED, published_order


@pytest.mark.parametrize("named", [list(PUBLISHED), sorted(PUBLISHED), sorted(PUBLISHED, reverse=True)])
def test_settings_in_the_published_order_have_a_tau_of_1_in_whatever_order_they_come(named):
    of_seed = {name: OfSeed({"token_accuracy": {"32": PUBLISHED[name]}}, PUBLISHED[name]) for name in named}
    found = published_order({name: {"copy": {0: one, 1: one}} for name, one in of_seed.items()})
    assert found["kendall_tau"]["mean"] == pytest.approx(1)
    best = max(PUBLISHED, key=PUBLISHED.__getitem__)
    assert found["mrr"][best]["mean"] == 1
