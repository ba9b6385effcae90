"""Heads by rank, and how many can go."""

import numpy as np
import pytest

from attention_jax.tasks.heads.measuring import by_rank, ranked, spared
from attention_jax.tasks.heads.roles import count_roles

SIZES = {"encoder": (2, 2), "cross": (1, 2)}


def test_heads_of_a_layer_are_ranked_by_what_they_are_worth_and_stay_in_it():
    worth = np.array([0.1, 0.2, 0.9, 0.3, -0.1, 0.0])
    order = ranked(worth, SIZES)
    assert order == [1, 0, 2, 3, 5, 4]
    rows = {"worth": worth[order].tolist(), "error": [None] * 4 + [0.5, 0.6]}
    found = by_rank(rows, SIZES)
    assert found["encoder"]["1"] == {"1": {"worth": 0.2}, "2": {"worth": 0.1}}
    assert found["cross"]["1"]["2"] == {"worth": -0.1, "error": 0.6}


@pytest.mark.parametrize(
    ("curve", "share"), [((1, 1, 1.05, 1.2, 1.0), 0.5), ((1, 2, 1, 1, 1), 0.0), ((1, 1, 1, 1, 1.1), 1.0)]
)
def test_heads_are_spared_as_long_as_the_loss_stays_within_the_tolerance(curve, share):
    assert spared(np.array(curve), 0.1 + 1e-9) == share


def test_roles_are_counted_by_their_thresholds_and_where_they_look():
    looks = {
        "positional": {"encoder": np.array([[0.95, 0.9], [0.89, 1.0]])},
        "offset": {"encoder": np.array([[-1, 3], [0, 0]])},
        "rare": {"encoder": np.array([[0.1, 0.6], [0.2, 0.3]])},
        "aligned": {"cross": np.array([[0.1, 0.4]])},
    }
    found = count_roles(looks, {"positional": 0.9, "rare": 0.5, "aligned": 0.3})
    assert found["positional"] == {"encoder": 3}
    assert found["offsets"] == {"encoder": {"previous": 1, "itself": 1, "next": 0, "elsewhere": 1}}
    assert (found["rare"], found["aligned"]) == ({"encoder": 1}, {"cross": 1})
