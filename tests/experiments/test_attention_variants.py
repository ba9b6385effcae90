"""Families of attention beside softmax: every setting of every variant is one that can be trained."""

import pytest

from attention_jax.launcher import experiments
from configs import attention_variants

SWEEPS = [(variant, "") for variant in attention_variants.VARIANTS]
SWEEPS += [(variant, name) for variant in ("core", "small", "text") for name in attention_variants.SWEEPS]
SWEEPS += [("translation", name) for name in attention_variants.IN_TRANSLATION]


@pytest.mark.parametrize(("variant", "name"), SWEEPS)
def test_every_setting_is_one_that_can_be_trained(variant, name):
    settings = {tuple(sorted(one.items())) for one in attention_variants.sweep(variant, name)}
    for setting in settings:
        config = attention_variants.get_config(variant)
        config.update_from_flattened_dict(dict(setting))
        experiments.load(config.experiment).check(config)


@pytest.mark.parametrize("variant", attention_variants.VARIANTS)
def test_the_first_setting_is_softmax_attention_and_every_setting_has_the_same_keys(variant):
    space = attention_variants.sweep(variant)
    values = set(space[0].values())
    assert {"attention", "scaled_dot", "softmax", "plain"} <= {value for value in values if isinstance(value, str)}
    assert len({tuple(sorted(one)) for one in space}) == 1


def test_a_sweep_that_a_variant_has_not_is_refused_with_those_that_it_has():
    with pytest.raises(ValueError, match="variant 'translation' has no sweep 'temperatures': choose one of patterns"):
        attention_variants.sweep("translation", "temperatures")
