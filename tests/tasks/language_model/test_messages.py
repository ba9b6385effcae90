"""What is told of a text that was imported."""

from types import SimpleNamespace

import pytest

from attention_jax.tasks.language_model.messages import tell_text
from configs.language_model import get_config


@pytest.mark.parametrize(
    ("validation", "path", "is_told"), [(50, "", True), (10, "", False), (50, "held_out.txt", False)]
)
def test_a_share_that_is_far_more_than_what_was_asked_for_is_told(validation, path, is_told, capsys):
    splits = {"train": {"tokens": 90, "unknown": 0}, "validation": {"tokens": validation, "unknown": 0}}
    data = get_config().data
    data.validation_path = path
    tell_text(SimpleNamespace(meta={"splits": splits}, vocabulary=7), data)
    told = capsys.readouterr().err
    assert f"tokens: 90 train, {validation} validation; vocabulary: 7" in told
    assert ("warning: 36% of the text is held out" in told) == is_told


@pytest.mark.parametrize("path", ["", "input.txt"])
def test_that_a_text_is_generated_is_told(path, capsys):
    data = get_config().data
    data.path = path
    tell_text(SimpleNamespace(meta={"splits": {"train": {"tokens": 9, "unknown": 0}}}, vocabulary=7), data)
    assert ("the text is generated sentences" in capsys.readouterr().err) == (not path)
