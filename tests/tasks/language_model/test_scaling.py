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

WIDTHS, STEPS, RATE = (32, 288), 4, 0.01
SCALED_AFTER = ("embedding", "last_norm")  # what these put out is multiplied: by √width, and in tied logits
TOKENS = jax.random.randint(jax.random.key(1), (4, 9), 0, 11)


def config_of(width, name, **changes):
    config = get_config()
    config.model.update(width=width, feed_forward=2 * width, layers=1, heads=2, kv_heads=2, dropout_sites=())
    config.model.update(parametrization=name, base_width=WIDTHS[0], base_heads=2, backend="reference", **changes)
    config.optimizer.update(name="adam", learning_rate=RATE, schedule="constant", weight_decay=0.0, warmup_steps=0)
    return config


def model_of(config):
    widths = ("parametrization", "base_width", "base_heads")
    return LanguageModel.of(vocabulary=11, **{k: v for k, v in config.model.to_dict().items() if k not in widths})


@functools.cache
def trained(width, name, is_tied=True):
    """What every module puts out before and after a few steps of Adam, side by side, and last the logits."""
    config = config_of(width, name, is_tied=is_tied)
    model = model_of(config)
    lines, hyper = lines_of_config(config, model), traced(settled(config.optimizer))
    shown = lambda module, method: method == "__call__" and module.name not in SCALED_AFTER  # noqa: E731
    read = lambda params: model.apply({"params": params}, TOKENS[:, :-1], capture_intermediates=shown)  # noqa: E731

    def score(params):
        logits = jax.nn.log_softmax(read(params)[0])
        return -jnp.mean(jnp.take_along_axis(logits, TOKENS[:, 1:, None], -1))

    @jax.jit
    def advance(carry, step):
        params, moments = carry
        found = update(jax.grad(score)(params), moments, params, step, hyper, Rule("adam", "constant", lines))
        return found[:2], None

    @jax.jit
    def both(key):
        params = scaled_init(model, lines, key)["params"]
        after = jax.lax.scan(advance, (params, new_moments(params, "adam")), jnp.arange(STEPS))[0][0]
        return jax.tree.leaves(jax.vmap(read)(jax.tree.map(lambda *each: jnp.stack(each), params, after))[::-1])

    return jax.tree.map(np.asarray, both(jax.random.key(0)))


def exponents(name, is_tied):
    """Of the width, in the mean size of how training changed what each module puts out, the logits last."""
    changes = [[np.abs(np.diff(found, axis=0)).mean() for found in trained(width, name, is_tied)] for width in WIDTHS]
    return [fitted_powers({"width": WIDTHS}, of_widths)["width"][0] for of_widths in zip(*changes, strict=True)]


@pytest.mark.parametrize("is_tied", [True, False])
def test_what_adam_does_to_activations_grows_with_the_width_in_the_standard_parametrization_alone(is_tied):
    assert max(map(abs, exponents("mup", is_tied))) < 0.2
    assert exponents("standard", is_tied)[-1] > 0.4


@pytest.mark.parametrize("is_tied", [True, False])
def test_at_the_base_width_both_are_the_same_numbers(is_tied):
    jax.tree.map(
        np.testing.assert_array_equal, trained(WIDTHS[0], "mup", is_tied), trained(WIDTHS[0], "standard", is_tied)
    )


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_stack_of_layers_has_the_lines_of_its_layers(is_tied):
    config = config_of(64, "mup", is_tied=is_tied)
    alone = lines_of_config(config, model_of(config))
    config.model.stacked = True
    assert lines_of_config(config, model_of(config)) == alone


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mixer": "gru", "positions": "none"}, "no line for the matrix"),
        ({"score": "cosine"}, "score='cosine'"),
        ({"family": "talking"}, "family='talking'"),
        ({"qk_norm": True}, "qk_norm=False"),
        ({"norm_first": False}, "norm_first=True or is_tied=False"),
        ({"base_width": 0}, "config.model.base_width=0"),
        ({"heads": 4, "kv_heads": 4}, "heads=4 are not base_heads=2; choose heads=2, or the base_width"),
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
