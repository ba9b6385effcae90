"""What is measured of induction heads: gains of hand-made losses, dates of hand-made logs, rows that repeat."""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.tasks.language_model.induction import gain_of, open_repeated, phase_of, require_dated
from configs.induction import get_config


def test_a_gain_is_the_loss_a_tenth_into_a_row_minus_that_at_its_end():
    nats = np.zeros(160)
    nats[16:26] = 3.0
    nats[-10:] = 1.0
    assert gain_of(nats) == pytest.approx(2.0)


def test_a_phase_is_dated_by_each_seeds_own_lines():
    lines = [
        {"step": step, "seed": seed, "induction.prefix_best": float(step > at), "induction.in_context_gain": step * 0.1}
        for seed, at in ((0, 25), (1, 45))
        for step in range(10, 70, 10)
    ]
    lines.append({"step": 15, "seed": 0, "train.loss": 1.0})
    assert [phase_of(lines, seed)["prefix_best_step"] for seed in (0, 1)] == [25, 45]


def test_rows_repeat_with_periods_of_their_own_and_the_next_token_is_the_target():
    config = get_config("smoke")
    source = open_repeated(config, None)
    batches = source.batches(0, 3, 4)
    rows = {"step": batches.table["step"][batches.rows[0]]}
    texts = source.texts(rows, {"key": jax.random.key(0)})
    np.testing.assert_array_equal(texts.tokens[:, 1:], texts.targets[:, :-1])
    periods = []
    for row in np.asarray(texts.tokens):
        whole = [period for period in range(1, len(row)) if (row[period:] == row[:-period]).all()]
        periods.append(whole[0])
    assert max(periods) <= config.data.length // 2
    assert len(set(periods)) > 3


@pytest.mark.parametrize(
    ("key", "value"), [("data.shortest", 1), ("data.shortest", 17), ("data.symbols", 1), ("data.length", 8)]
)
def test_rows_that_cannot_be_measured_are_refused_by_their_key(key, value):
    config = changed(key, value)
    with pytest.raises(UserError, match=f"config.{key}={value}"):
        open_repeated(config, None)


def test_one_evaluation_dates_nothing():
    with pytest.raises(UserError, match="config.train.evaluate_every=300"):
        require_dated(changed("train.evaluate_every", 300))


def changed(key, value):
    config = ConfigDict(get_config("smoke").to_dict())
    config.update_from_flattened_dict({key: value})
    return config
