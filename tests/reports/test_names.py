"""What a sweep calls its settings and their groups."""

import pytest

from attention_jax.reports.names import name_of_group, name_of_run, names_of, short_keys


def test_a_setting_is_called_by_what_it_sets_with_the_keys_where_it_sets_more_than_one_value():
    assert names_of([{"model.positions": "none"}, {"model.positions": "alibi"}]) == ["none", "alibi"]
    sides = [{"encoder": name, "decoder": name} for name in ("none", "alibi")]
    assert names_of(sides) == ["none", "alibi"]
    rates = [{"optimizer.dropout": 0.1, "optimizer.rate": rate, "data.n": 1} for rate in (0.1, 0.2)]
    assert names_of(rates) == ["rate 0.1", "rate 0.2"]  # what all settings set tells nothing
    two = [{"a": 2, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 2}]
    assert names_of(two) == ["a 2, b 1", "a 1, b 1", "a 1, b 2"]
    assert names_of([{}]) == ["as configured"]
    assert len(set(names_of([{}, {"a": 1}, {"a": 2}]))) == 3


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ([{"family": "plain"}, {"family": "gated"}, {"cross_family": "gated"}],
         ["family plain", "family gated", "cross_family gated"]),
        ([{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 4}, {"a": 1, "b": 5, "c": 3}, {"b": 5, "c": 3}],
         ["a 1, b 2, c 3", "a 1, b 2, c 4", "a 1, b 5, c 3", "b 5, c 3"]),
        ([{"rate": 0.00123456}, {"rate": 0.00123457}, {}],
         ["rate 0.00123456", "rate 0.00123457", "as configured"]),
    ],
)  # fmt: skip
def test_two_settings_never_have_one_name(settings, names):
    assert names_of(settings) == names


def test_of_many_keys_what_most_settings_have_goes_without_saying():
    plain = {"model.positions": "rotary", "model.score": "dot", "model.mixer": "attention"}
    others = [{"model.score": "l2"}, {"model.mixer": "gru", "model.positions": "none"}, {"model.width": 8}]
    names = ["rotary, dot, attention", "score l2", "positions none, mixer gru", "width 8"]
    assert names_of([plain, *(plain | one for one in others)]) == names
    grid = [{"a": a, "b": b, "c": c} for a in (1, 2) for b in (1, 2) for c in (1, 2)]
    assert names_of(grid)[0] == "a 1, b 1, c 1"


def test_a_task_is_called_by_its_value_with_the_keys_where_there_are_more():
    assert name_of_group({}) == ""
    assert name_of_group({"data.task": "copy"}) == "copy"
    assert name_of_group({"data.task": "copy", "data.length": 16}) == "task copy, length 16"


def test_a_key_is_called_by_as_much_of_it_as_tells_it_from_the_others():
    keys = ("kernel.name", "kernel.width", "model.width", "data.n")
    settings = [dict.fromkeys(keys, value) for value in (1, 2)]
    assert [*short_keys(settings).values()] == ["kernel", "kernel.width", "model.width", "n"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python launch.py --config=configs/nmt.py:bahdanau,tatoeba_600 --workdir=w", "nmt:bahdanau,tatoeba_600"),
        ("attention-jax --workdir=w --config '/a b/heads.py' --config.run=r", "heads"),
        ("attention-jax '--config=/a b/heads.py:core' --config.run=r", "heads:core"),
        ("python launch.py --workdir=w", "nmt"),
        ("", "nmt"),
    ],
)
def test_a_run_is_called_by_its_config_and_variant_or_by_its_experiment(command, name):
    assert name_of_run({"experiment": "nmt", "command": command}) == name
