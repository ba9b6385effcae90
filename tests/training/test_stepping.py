"""Micro-batches that add up, a running mean of parameters, steps that are left out, and what a step counts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import drawn
from translators import ONE_LAYER, build

from attention_jax.errors import UserError
from attention_jax.ops.losses import Sums
from attention_jax.tasks.translation.model import training_loss
from attention_jax.training.hyper import traced
from attention_jax.training.optimizer import Rule, new_moments
from attention_jax.training.state import new_state
from attention_jax.training.step import Stepping, stepping_of, train_step

RULE = Rule("sgd", "constant")  # whose step is the gradient
SHARED = {"learning_rate": 1e-2, "warmup_steps": 0, "clip_norm": 100, "weight_decay": 0, "momentum": 0}
HYPER = traced({**SHARED, "dropout": 0.3, "label_smoothing": 0.1}) | {"key": jax.random.key(2)}


SIZES = {"embedding": 16, "hidden": 16, "width": 16, "feed_forward": 32, "heads": 2, "kv_heads": 2}


def stepped(model, batch, stepping):
    variables = drawn(model.init, batch["source"], jnp.full(len(batch["source"]), 7), batch["target"])
    state = new_state(variables, new_moments(variables["params"], "sgd"))
    step = functools.partial(train_step, training_loss(model), RULE, stepping)
    return jax.jit(step)(state, batch, HYPER)


def uneven(random, rows=12):
    """A batch whose rows have 1 to 7 words each."""
    tokens = random.integers(4, 60, (2, rows, 7))
    lengths = random.integers(1, 8, (2, rows, 1))
    source, target = np.where(np.arange(7) < lengths, tokens, 0)
    return {"source": jnp.asarray(source, jnp.int32), "target": jnp.asarray(target, jnp.int32)}


@pytest.mark.parametrize(
    "name", ["bahdanau", *(pytest.param(n, marks=pytest.mark.slow) for n in ("luong_local_p", "transformer_small"))]
)
def test_micro_batches_of_unequal_token_counts_add_up_to_the_whole_batch_with_dropout(name, random):
    model, batch = build(name, source=60, target=60, **SIZES, **ONE_LAYER), uneven(random)
    whole, metrics = stepped(model, batch, Stepping())
    parts, of_parts = stepped(model, batch, Stepping(accumulate=4))
    for name in ("loss", "gradient_norm", "update_norm"):
        np.testing.assert_allclose(of_parts[name].total, metrics[name].total, rtol=1e-5)
    assert of_parts["loss"].count == metrics["loss"].count == (batch["target"] != 0).sum()
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), parts.variables, whole.variables)


def test_a_batch_norm_has_no_micro_batches(random):
    with pytest.raises(UserError, match="config.train.accumulate=2: a batch norm's moments are of a whole batch"):
        stepped(build("transformer_small", source=60, target=60, norm="batch"), uneven(random), Stepping(accumulate=2))


def test_a_batch_norm_has_no_running_mean_of_parameters(random):
    with pytest.raises(UserError, match="config.train.ema=0.9: the mean of parameters has no moments for a batch norm"):
        stepped(build("transformer_small", source=60, target=60, norm="batch"), uneven(random), Stepping(ema=0.9))


def square(variables, batch, dropout, hyper):
    return Sums(jnp.sum((variables["params"]["w"] - batch["x"]) ** 2), jnp.float32(batch["x"].size)), {}


def line(stepping, xs, has_average=False):
    """The states after each of several steps towards x."""
    params = {"w": jnp.zeros(())}
    state = new_state({"params": params}, new_moments(params, "sgd"), has_average=has_average)
    hyper = traced({**SHARED, "learning_rate": 0.25, "dropout": 0}) | {"key": jax.random.key(0)}
    states = []
    for x in xs:
        state, _ = train_step(square, RULE, stepping, state, {"x": jnp.full((2, 1), x)}, hyper)
        states.append(state)
    return states


def test_the_running_mean_forgets_the_first_parameters():
    mean = 0.0
    for step, state in enumerate(line(Stepping(ema=0.9), [1.0] * 30, has_average=True)):
        decay = min(0.9, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * float(state.variables["params"]["w"])
        np.testing.assert_allclose(state.average["w"], mean, rtol=1e-6)


def test_steps_that_are_not_finite_are_left_out_and_counted_until_there_are_too_many_in_a_row():
    nan = float("nan")
    states = line(Stepping(skip_nonfinite=3), [1.0, nan, 1.0, nan, nan, nan])
    first, after_nan, third, *_, last = states
    assert after_nan.variables["params"]["w"] == first.variables["params"]["w"] == 0.5
    assert third.variables["params"]["w"] == 0.75
    assert [bool(state.goes_on) for state in states] == [True] * 5 + [False]
    assert last.unlogged["skipped"].total == 4
    assert last.unlogged["loss"].count == 4  # two items of two steps
    assert np.isfinite(last.unlogged["loss"].total)
    assert last.step == 6


def test_without_leave_the_first_step_that_is_not_finite_is_the_last():
    states = line(Stepping(), [1.0, float("inf")])
    assert [bool(state.goes_on) for state in states] == [True, False]


@pytest.mark.parametrize(("key", "value"), [("accumulate", 0), ("ema", 1.0), ("ema", -0.1), ("skip_nonfinite", -1)])
def test_a_stepping_that_cannot_be_is_refused_by_its_key(key, value):
    with pytest.raises(UserError, match=f"config.train.{key}={value}: needs "):
        stepping_of({"accumulate": 1, "ema": 0.0, "skip_nonfinite": 0, key: value})
