"""Rank correlations over words."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from attention_jax.errors import UserError
from attention_jax.tasks.explanation.measuring import mean_kendall, programs_of
from configs.nmt import get_config


def test_maps_that_order_words_alike_have_a_tau_of_1_and_in_reverse_of_minus_1():
    maps = [np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]])]
    assert mean_kendall(maps, [np.exp(maps[0])]) == pytest.approx(1)
    assert mean_kendall(maps, [-maps[0]]) == pytest.approx(-1)


def test_a_word_to_which_all_source_words_are_alike_is_left_out():
    maps = [np.array([[0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]])]
    assert mean_kendall(maps, [np.array([[1, 2, 3], [1, 2, 3]])]) == pytest.approx(1)
    assert math.isnan(mean_kendall([maps[0][1:]], [np.array([[1, 2, 3]])]))


@pytest.mark.parametrize("family", ["talking", "differential"])
@pytest.mark.parametrize("key", ["family", "cross_family", "encoder_family"])
def test_a_model_whose_weights_may_be_negative_is_refused(family, key):
    config = get_config("transformer_book,embedded")
    config.model.kwargs[key] = family
    with pytest.raises(UserError, match=f"runs/mine: config.model.kwargs.{key}='{family}' makes weights below 0"):
        programs_of(SimpleNamespace(model=None, config=config, folder="runs/mine"), config)
