"""Maximal update parametrization: what activations do as a model widens, and what it is not known for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.errors import UserError
from attention_jax.evaluation.statistics import fitted_powers
from attention_jax.models.language_model import LanguageModel
from attention_jax.tasks.language_model.scaling import lines_of_config, scaled_init
from attention_jax.training.hyper import settled, traced
from attention_jax.training.optimizer import Rule, new_moments, update
from configs.language_model import get_config

WIDTHS, STEPS, RATE = (32, 64, 128, 256), 4, 0.01
TOKENS = jax.random.randint(jax.random.key(1), (4, 9), 0, 11)


def config_of(width, name, **changes):
    config = get_config()
    config.model.update(width=width, feed_forward=2 * width, layers=1, heads=2, kv_heads=2, dropout_sites=())
    config.model.update(parametrization=name, base_width=WIDTHS[0], backend="reference", **changes)
    config.optimizer.update(name="adam", learning_rate=RATE, schedule="constant", weight_decay=0.0, warmup_steps=0)
    return config


def model_of(config):
    widths = ("parametrization", "base_width")
    return LanguageModel.of(vocabulary=11, **{k: v for k, v in config.model.to_dict().items() if k not in widths})


@functools.cache
def trained(width, name, is_tied=True):
    """Logits before and after a few steps of Adam."""
    config = config_of(width, name, is_tied=is_tied)
    model = model_of(config)
    lines, hyper = lines_of_config(config, model), traced(settled(config.optimizer))
    read = lambda params: model.apply({"params": params}, TOKENS[:, :-1])  # noqa: E731
    score = lambda params: jnp.mean(  # noqa: E731
        -jnp.take_along_axis(jax.nn.log_softmax(read(params)), TOKENS[:, 1:, None], -1)
    )

    @jax.jit
    def advance(carry, step):
        params, moments = carry
        found = update(jax.grad(score)(params), moments, params, step, hyper, Rule("adam", "constant", lines))
        return found[:2], None

    @jax.jit
    def both(key):
        params = scaled_init(model, lines, key)["params"]
        after = jax.lax.scan(advance, (params, new_moments(params, "adam")), jnp.arange(STEPS))[0][0]
        return read(params), read(after)

    return tuple(np.asarray(logits) for logits in both(jax.random.key(0)))


def exponent(name, is_tied):
    """Of the width, in the mean change of logits by training."""
    changes = [np.abs(np.subtract(*trained(width, name, is_tied))).mean() for width in WIDTHS]
    return fitted_powers({"width": WIDTHS}, changes)["width"][0]


@pytest.mark.parametrize("is_tied", [True, False])
def test_what_adam_does_to_logits_grows_with_the_width_in_the_standard_parametrization_alone(is_tied):
    assert abs(exponent("mup", is_tied)) < 0.2
    assert exponent("standard", is_tied) > 0.4


@pytest.mark.parametrize("is_tied", [True, False])
def test_at_the_base_width_both_are_the_same_numbers(is_tied):
    np.testing.assert_array_equal(trained(WIDTHS[0], "mup", is_tied), trained(WIDTHS[0], "standard", is_tied))


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_stack_of_layers_has_the_lines_of_its_layers(is_tied):
    config = config_of(64, "mup", is_tied=is_tied)
    alone = lines_of_config(config, model_of(config))
    config.model.stacked = True
    assert lines_of_config(config, model_of(config)) == alone


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mixer": "gru"}, "no line for the matrix"),
        ({"score": "cosine"}, "score='cosine'"),
        ({"family": "talking"}, "family='talking'"),
        ({"qk_norm": True}, "qk_norm=False"),
        ({"norm_first": False}, "norm_first=True or is_tied=False"),
        ({"base_width": 0}, "config.model.base_width=0"),
        ({"parametrization": "nup"}, "choose one of standard, mup"),
    ],
)
def test_what_it_is_not_known_for_is_refused(changes, said):
    config = config_of(64, "mup")
    config.model.update(changes)
    with pytest.raises(UserError, match=said):
        lines_of_config(config, model_of(config))


def test_an_optimizer_whose_steps_follow_the_gradients_scale_is_refused():
    config = config_of(64, "mup")
    config.optimizer.name = "sgd"
    with pytest.raises(UserError, match="not known for sgd; choose config.optimizer.name=adam"):
        lines_of_config(config, model_of(config))
