"""A state that takes up keys and values: all its forms are one, and that of a loop in float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.linear import (
    Tokens,
    bidirectional,
    chunked,
    gated_log_decays,
    over_sum,
    parallel,
    recurrent,
    retention_decays,
    with_sum,
)

BATCH, T, D, V = 2, 11, 3, 4
RULES = ("plain", "one decay", "a decay a feature", "delta")


def tokens(rule, seed=0):
    draw = np.random.default_rng(seed)
    query, key, value = (draw.normal(size=(BATCH, T, size)) for size in (D, D, V))
    decay = {
        "one decay": draw.uniform(0.3, 1, (BATCH, T, 1)),
        "a decay a feature": draw.uniform(0.05, 1, (BATCH, T, D)),
    }
    rate = draw.uniform(0, 1, (BATCH, T, 1)) if rule == "delta" else None
    if rule == "delta":
        key /= np.linalg.norm(key, axis=-1, keepdims=True)
    return Tokens(query, key, value, np.log(decay[rule]) if rule in decay else None, rate)


def loop(given):
    """The recurrence, in float64."""
    outputs, states = np.zeros((BATCH, T, V)), np.zeros((BATCH, D, V))
    for b in range(BATCH):
        for t in range(T):
            key, value = given.key[b, t], given.value[b, t]
            if given.log_decay is not None:
                states[b] *= np.exp(np.broadcast_to(given.log_decay[b, t], D))[:, None]
            if given.rate is not None:
                value = given.rate[b, t] * (value - states[b].T @ key)
            states[b] += np.outer(key, value)
            outputs[b, t] = states[b].T @ given.query[b, t]
    return outputs, states


def in_float32(given):
    return jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), given)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("rule", RULES)
def test_all_pairs_at_once_are_what_the_loop_says(rule):
    given = tokens(rule)
    close(jax.jit(parallel)(in_float32(given)), loop(given)[0])


@pytest.mark.parametrize("rule", RULES)
def test_token_by_token_and_block_by_block_are_what_the_loop_says_and_end_in_its_state(rule):
    given = tokens(rule)
    for form in (recurrent, functools.partial(chunked, size=4), functools.partial(chunked, size=T)):
        for found, expected in zip(jax.jit(form)(in_float32(given)), loop(given), strict=True):
            close(found, expected)


@pytest.mark.parametrize("rule", RULES)
def test_a_text_read_in_parts_is_as_read_at_once_and_a_token_of_nothing_changes_no_state(rule):
    given = in_float32(tokens(rule))
    whole, last = jax.jit(recurrent)(given)
    parts = [jax.tree.map(lambda array, part=part: array[:, part], given) for part in (slice(0, 5), slice(5, T))]
    first, state = jax.jit(recurrent)(parts[0])
    absent = jax.tree.map(lambda array: jnp.pad(array, ((0, 0), (0, 3), (0, 0))), parts[1])
    second, found = jax.jit(functools.partial(chunked, size=4))(absent, state=state)
    close(jnp.concatenate([first, second[:, : T - 5]], axis=1), whole)
    close(found, last)


@pytest.mark.parametrize("rule", RULES)
def test_gradients_of_blocks_are_those_of_all_pairs(rule):
    given = in_float32(tokens(rule))
    weighed = lambda form: jax.jit(jax.grad(lambda given: jnp.sum(jnp.sin(form(given)))))(given)  # noqa: E731
    jax.tree.map(close, weighed(lambda given: chunked(given, 4)[0]), weighed(parallel))


def test_a_decay_of_nothing_has_its_whole_gradient_and_one_that_grows_grows_in_every_form():
    ones = jnp.ones((3, 1))
    last = lambda form, decay: form(Tokens(ones, ones, ones, log_decay=jnp.full((3, 1), decay)))[2, 0]  # noqa: E731
    forms = (parallel, lambda given: recurrent(given)[0], lambda given: chunked(given, 2)[0])
    for decay in (0.0, 0.5, -200.0 / 3):
        for form in forms[: 2 if decay < -50 else 3]:  # blocks have a least sum of decays
            value, slope = jax.value_and_grad(functools.partial(last, form))(decay)
            assert value == pytest.approx(1 + np.exp(decay) + np.exp(2 * decay), rel=1e-6)
            assert slope == pytest.approx(np.exp(decay) + 2 * np.exp(2 * decay), rel=1e-6)


def test_no_tokens_read_nothing():
    none = jnp.ones((2, 0, 3))
    for form in (parallel, lambda given: recurrent(given)[0], lambda given: chunked(given, 4)[0]):
        assert form(Tokens(none, none, none)).shape == (2, 0, 3)


def test_decays_and_rates_together_are_refused_but_token_by_token():
    ones = jnp.ones((2, 1))
    both = Tokens(ones, ones, ones, log_decay=-ones, rate=ones)
    for form in (parallel, functools.partial(chunked, size=1)):
        with pytest.raises(ValueError, match="log_decay and rate: give one of them"):
            form(both)


def test_blocks_bear_the_strongest_decay_that_they_may():
    given = tokens("a decay a feature")._replace(log_decay=np.full((BATCH, T, D), -16.0))
    for found, expected in zip(chunked(in_float32(given), 4), loop(given), strict=True):
        close(found, expected)


def test_linear_attention_divides_by_the_sum_of_weights_in_either_direction():
    given = tokens("plain")
    query, key = np.abs(given.query), np.abs(given.key)
    weights = np.einsum("btd,bsd->bts", query, key)
    for form, kept in ((bidirectional, weights), (parallel, np.tril(weights))):
        found = over_sum(form(in_float32(Tokens(query, key, np.asarray(with_sum(jnp.asarray(given.value)))))))
        close(found, kept @ given.value / kept.sum(-1, keepdims=True))


def test_what_reads_no_key_reads_zeros_with_finite_gradients():
    given = in_float32(tokens("plain"))._replace(key=jnp.zeros((BATCH, T, D)))
    read = lambda value: over_sum(parallel(given._replace(value=with_sum(value))))  # noqa: E731
    np.testing.assert_array_equal(read(given.value), 0)
    assert np.isfinite(jax.grad(lambda value: read(value).sum())(given.value)).all()


def test_by_the_delta_rule_at_full_rate_a_key_is_answered_by_the_value_that_it_was_last_given():
    key = jnp.eye(3)[jnp.array([0, 1, 0, 2, 1])][None]
    value = jax.random.normal(jax.random.key(0), (1, 5, V))
    _, state = recurrent(Tokens(key, key, value, rate=jnp.ones((1, 5, 1))))
    close(state[0], value[0, jnp.array([2, 4, 3])])


def test_decays_that_tokens_say_are_roots_of_sigmoids():
    gates = np.array([-80.0, -3.0, 0.0, 3.0, 80.0])
    expected = [-math.log1p(math.exp(-g)) / 16 for g in gates]
    np.testing.assert_allclose(gated_log_decays(jnp.asarray(gates)), expected, rtol=1e-5, atol=1e-30)


def test_retention_decays_by_head_as_published():
    np.testing.assert_allclose(retention_decays(3), [1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128], rtol=1e-6)
