"""The numbers of a config's optimizer: which there are, what they may be, and which share a program."""

import jax.numpy as jnp
import pytest

from attention_jax.errors import UserError
from attention_jax.runs.config import flatten
from attention_jax.training.hyper import OWN, UNSET, dynamic_keys, rule_of, settled, traced
from attention_jax.training.optimizer import OPTIMIZERS, Rule
from configs import nmt, positional_encoding


def section(**changed):
    return {**nmt.OPTIMIZER, **changed}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_has_its_own_defaults_and_no_number_of_another(name):
    found = settled(section(name=name))
    own = {key: number.default for key, number in OPTIMIZERS[name].numbers.items()}
    assert {key: value for key, value in found.items() if key in UNSET} == own
    assert set(found) - set(UNSET) == set(nmt.OPTIMIZER) - set(UNSET)
    assert rule_of(found) == Rule(name, "cosine")


def test_what_is_set_is_kept_and_settling_again_changes_nothing():
    once = settled(section(name="lion", b2=0.98))
    assert (once["b1"], once["b2"]) == (0.9, 0.98)
    assert settled(once) == once


REFUSED = {
    "unknown": ({"name": "adagrad"}, r"config.optimizer.name='adagrad': choose one of adam, adamw, sgd, lion"),
    "schedule": ({"schedule": "step"}, r"config.optimizer.schedule='step': choose one of constant"),
    "of another": (
        {"momentum": 0.9},
        r"optimizer.momentum=0.9: adam has none; its own numbers are b1, b2, eps. Set .*=-1",
    ),
    "of adam": ({"name": "sgd", "b2": 0.98}, r"config.optimizer.b2=0.98: sgd has none; its own numbers are momentum"),
    "beta": ({"b1": 1.0}, r"config.optimizer.b1=1.0: needs 0 or more and less than 1"),
    "beta in float32": ({"b2": 0.999999999}, r"config.optimizer.b2=0.999999999: needs 0 or more and less than 1"),
    "negative": ({"b1": -0.5}, r"config.optimizer.b1=-0.5: needs 0 or more"),
    "epsilon": ({"eps": 0.0}, r"config.optimizer.eps=0.0: needs more than 0"),
    "threshold": ({"name": "adafactor", "clipping_threshold": 0.0}, r"clipping_threshold=0.0: needs more than 0"),
    "decay": ({"weight_decay": -0.1}, r"config.optimizer.weight_decay=-0.1: needs 0 or more"),
    "rate": ({"learning_rate": float("nan")}, r"config.optimizer.learning_rate=nan: needs 0 or more"),
    "infinite": ({"learning_rate": 1e39}, r"config.optimizer.learning_rate=1e\+39: needs 0 or more"),
    "clip": ({"clip_norm": 0.0}, r"config.optimizer.clip_norm=0.0: needs more than 0: nothing would be learnt"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_used_is_refused_with_its_key(kind):
    changed, message = REFUSED[kind]
    with pytest.raises(UserError, match=message):
        settled(section(**changed))


def test_a_section_without_a_number_that_its_optimizer_takes_is_refused():
    without = {key: value for key, value in nmt.OPTIMIZER.items() if key != "b1"}
    with pytest.raises(UserError, match="config.optimizer has no 'b1', which adam takes"):
        settled(without)
    assert settled({**without, "name": "sgd"})["momentum"] == 0.9


def test_traced_numbers_are_float32_and_no_names():
    found = traced(settled(section()))
    assert {leaf.dtype for leaf in found.values()} == {jnp.dtype("float32")}
    assert {"b1", "b2", "eps", "learning_rate", "dropout"} < set(found)
    assert not {"name", "schedule", "momentum"} & set(found)
    assert found["1 - b1"] == jnp.float32(0.1)


def test_every_number_of_the_optimizer_is_dynamic_and_no_name_is():
    flat = flatten(positional_encoding.get_config())
    found = dynamic_keys(flat, ("data.task",))
    numbers = {f"optimizer.{key}" for key in positional_encoding.OPTIMIZER} - {"optimizer.name", "optimizer.schedule"}
    assert set(found) == {"seeds", "data.task"} | numbers
    assert {f"optimizer.{key}" for key in UNSET} < set(found)
    assert "optimizer.new" in dynamic_keys({**flat, "optimizer.new": 3})
    assert "optimizer.switch" not in dynamic_keys({**flat, "optimizer.switch": True})
    assert set(UNSET.values()) == {OWN}
