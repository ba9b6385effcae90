"""What is trained in a benchmark: a model of a config's case, its loss, and random words as its data."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.tokenizers import BOS
from attention_jax.models import TRANSLATORS
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.placement import LAYERS, PLACEMENTS
from attention_jax.tasks.benchmark.pairs import random_pairs, random_words
from attention_jax.tasks.language_model import model as texts
from attention_jax.tasks.translation import model as translation
from attention_jax.training.placement import Placement
from attention_jax.training.state import Variables
from attention_jax.training.step import Loss


class Learner(NamedTuple):
    """A model, what makes its variables, its loss, its rows, `[rows, length]` each, and where its parameters lie."""

    model: nn.Module
    init: Callable[[jax.Array], Variables]
    loss: Loss
    table: dict[str, np.ndarray]
    placement: Placement


def learner_of(case: ConfigDict) -> Learner:
    """What `case.model` names: a translator, or "language_model"."""
    if case.model.name == "language_model":
        writer = LanguageModel.of(vocabulary=case.vocabulary, **_kwargs(case))
        table = {"target": random_words(case.pairs, case.length, case.vocabulary)}
        return Learner(writer, functools.partial(texts.init, writer), _next_word(writer), table, Placement(LAYERS))
    model = translator_of(case)
    table = random_pairs(case.pairs, case.length, case.vocabulary)
    loss, placement = translation.training_loss(model), Placement(PLACEMENTS[case.model.name])
    return Learner(model, functools.partial(translation.init, model), loss, table, placement)


def translator_of(case: ConfigDict) -> nn.Module:
    """The translator that `case.model` names."""
    sizes = {"source_vocabulary": case.vocabulary, "target_vocabulary": case.vocabulary}
    return TRANSLATORS[case.model.name](**sizes, **_kwargs(case))


def changed(case: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """A copy with other values of some keys, by their paths."""
    found = ConfigDict(case.to_dict())
    found.update_from_flattened_dict(dict(values))
    return found


def _kwargs(case: ConfigDict) -> dict[str, Any]:
    return case.model.kwargs.to_dict() | {"dtype": jnp.dtype(case.dtype)}


def _next_word(model: LanguageModel) -> Loss:
    def loss(variables: Variables, batch: Any, dropout: Any, hyper: Any):
        tokens = batch["target"]
        before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
        rows = texts.Texts(before, tokens, jnp.ones_like(tokens, bool))
        return texts.loss(model, variables, rows, dropout, hyper["label_smoothing"])

    return loss
