"""An error of a constructor names the config's key."""

import pytest

from attention_jax.errors import UserError
from attention_jax.tasks.sections import of_section, tell_unread_dropout


def make(*, width, heads=1):
    if width % heads:
        raise ValueError(f"heads={heads}: must divide width={width}.")
    if width > 9:
        raise ValueError("too wide and too deep.")
    if heads < 0:
        raise UserError("config.data.path: missing.")
    return {"width": width}["height" if width == 0 else "width"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 4, "heads": 3}, r"^config\.model\.heads=3: must divide width=4\.$"),
        ({"width": 4, "depth": 3}, r"^config\.model\.depth: no such key\.$"),
        ({"heads": 3}, r"^the config has no 'model\.width'\.$"),
        ({"width": 0}, r"^the config has no 'model\.height'\.$"),
        ({"width": 10}, r"^config\.model: too wide and too deep\.$"),
        ({"width": 4, "heads": -1}, r"^config\.data\.path: missing\.$"),
    ],
)
def test_a_refused_field_is_a_key_of_the_config(fields, message):
    with pytest.raises(UserError, match=message), of_section("config.model"):
        make(**fields)


def test_what_is_not_refused_passes():
    with of_section("config.model"):
        assert make(width=4) == 4


@pytest.mark.parametrize(("rate", "sites", "is_told"), [(0.31, (), True), (0.0, (), False), (0.31, ("hidden",), False)])
def test_dropout_that_drops_nothing_is_told_once(rate, sites, is_told, capsys):
    for _ in range(2):
        tell_unread_dropout(rate, sites, "config.model")
    said = "config.optimizer.dropout=0.31 drops nothing: config.model.dropout_sites is empty"
    assert capsys.readouterr().err.count(said) == is_told
