"""Heads by rank, and how many can go."""

from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from attention_jax.evaluation.statistics import over_seeds
from attention_jax.reports.heads_page import Written
from attention_jax.tasks.heads.gating import Losses
from attention_jax.tasks.heads.language_model import LanguageModelSession
from attention_jax.tasks.heads.measuring import by_rank, measure, ranked, spared
from attention_jax.tasks.heads.patching import Carried
from attention_jax.tasks.heads.portrait import Portrait, write_page
from attention_jax.tasks.heads.roles import count_roles
from attention_jax.tasks.heads.translation import TranslationSession

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
    assert found["offsets"] == {"encoder": {"previous": 1, "itself": 1, "next": 0, "other": 1}}
    assert (found["rare"], found["aligned"]) == ({"encoder": 1}, {"cross": 1})


def test_the_mean_count_of_heads_that_look_elsewhere_lies_in_its_interval():
    of_seeds = []
    for far in (2, 3):
        looks = {"positional": {"encoder": np.ones((1, far))}, "offset": {"encoder": np.full((1, far), -5)}}
        of_seeds.append(count_roles(looks, {"positional": 0.9})["offsets"])
    found = over_seeds([{"roles": {"offsets": offsets}} for offsets in of_seeds])
    low, high = found["ci95"]["roles"]["offsets"]["encoder"]["other"]
    assert low < found["roles"]["offsets"]["encoder"]["other"] == 2.5 < high


def losses(variables, batches, gates):
    return Losses(np.ones((len(gates), 1)), np.ones(1))


class Patched(TranslationSession):
    """Two seeds of one head, which carries half of every change but not half of every couple's."""

    sizes, variables, couples = {"cross": (1, 1)}, (0, 1), None
    losses = staticmethod(losses)

    def batches(self, key):
        return ()

    def carried(self, variables, couples):
        return Carried(np.ones(4), np.array([[0.2, 0.8, 0.4, 0.6]] * 2), np.ones(4, bool))


def test_what_heads_carry_alone_and_together_has_intervals_over_couples_where_seeds_are_alike():
    found = measure(Patched(ConfigDict({"parts": ("patching",)}), ConfigDict({"seeds": (0, 1)}), Path()))
    single = found["ci95"]["heads"]["cross"]["1"]["1"]["recovered"]
    assert found["patching"]["together"]["cross"] == pytest.approx(0.5)
    assert found["ci95"]["patching"]["together"]["cross"] == single
    assert single[0] < 0.45 < 0.55 < single[1]


class Read(LanguageModelSession):
    """A language model of one head."""

    sizes, variables, losses = {"decoder": (1, 1)}, (0,), staticmethod(losses)

    def batches(self, key):
        return ()

    def portrait(self, gates):
        written = [Written(["a"], [0.5])] * 2
        return Portrait("a", {"decoder": (["a"], ["b"])}, {"decoder": np.ones((1, 1, 1, 1))}, written)


def test_a_page_of_a_language_model_says_that_its_losses_are_of_held_out_windows(tmp_path):
    write_page(Read(ConfigDict({"split": "test"}), ConfigDict(), Path()), tmp_path / "heads.html")
    page = (tmp_path / "heads.html").read_text()
    assert "those of its validation split&#39;s windows, 1.000 as a whole" in page
