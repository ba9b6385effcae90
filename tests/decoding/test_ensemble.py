"""Models that decode as one: the mean of their probabilities at every word, and one model twice is that model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax
from support import compiled
from translators import INPUTS, LENGTHS, ONE_LAYER, SOURCE, trained

from attention_jax.decoding.ensemble import join_caches, join_steps, mean_log_probs
from attention_jax.decoding.greedy import greedy


def test_probabilities_are_averaged():
    logits = np.random.default_rng(0).normal(size=(3, 2, 5)) * 4
    expected = softmax(logits, axis=-1).mean(0)
    np.testing.assert_allclose(np.exp(mean_log_probs(list(jnp.asarray(logits, jnp.float32)))), expected, rtol=1e-5)
    np.testing.assert_array_equal(mean_log_probs([jnp.ones(3)]), 1)


def joined(module, members):
    caches = []
    for variables in members:
        memory = compiled(module, "encode")(variables, SOURCE, LENGTHS)
        caches.append(module.apply(variables, memory, 6, method="init_cache"))
    steps = [functools.partial(module.apply, variables, method="step") for variables in members]
    return join_steps(steps), join_caches(caches)


@pytest.mark.parametrize("name", ["bahdanau", "transformer_small"])
def test_every_step_averages_what_the_members_say_and_one_twice_says_the_same(name):
    module, one = trained(name, **ONE_LAYER)
    other = jax.tree.map(lambda a: 0.5 * a, one)
    apart = [compiled(module)(variables, SOURCE, LENGTHS, INPUTS) for variables in (one, other)]
    expected = np.mean([softmax(np.asarray(logits, np.float64), axis=-1) for logits in apart], axis=0)
    step, cache = joined(module, [one, other])
    step = jax.jit(step)
    for t in range(INPUTS.shape[1]):
        log_probs, cache = step(INPUTS[:, t], cache)
        np.testing.assert_allclose(np.exp(log_probs), expected[:, t], rtol=2e-3, atol=1e-5)
    alone, twice = (
        greedy(*joined(module, members), LENGTHS == 0, 6, bos=1, eos=2, pad=0) for members in ([one], [one, one])
    )
    np.testing.assert_array_equal(alone, twice)
