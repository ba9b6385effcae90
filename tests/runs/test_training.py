"""What a config says of training, as the loop's timetable."""

import pytest

from attention_jax.errors import UserError
from attention_jax.runs.training import timetable_of
from configs import nmt


def config(**train):
    whole = nmt.get_config().unlock()
    whole.train = {key: value for key, value in (whole.train.to_dict() | train).items() if value != "absent"}
    return whole


def test_a_timetable_has_the_configs_numbers_and_the_height_of_what_is_best():
    timetable = timetable_of(config(steps=7, best_by="validation.loss"))
    assert timetable.steps == timetable.next_stop(6, 100) == 7
    assert timetable.height(1.0) > timetable.height(2.0)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"pace": 3}, "config.train.pace: no such key; there are steps, steps_per_call, "),
        ({"keep_last": "absent"}, "the config has no .train.keep_last"),
        ({"log_every": 0}, "config.train.log_every=0: needs 1 or more"),
        ({"best_by": "validation.beauty"}, "config.train.best_by='validation.beauty': no metric of that name"),
        ({"best_by": "train.tokens"}, "config.train.best_by='train.tokens': neither more nor less of it is better"),
    ],
)
def test_a_setting_of_training_that_cannot_be_used_is_named_with_its_key(train, message):
    with pytest.raises(UserError, match=message):
        timetable_of(config(**train))
