"""A translation model: built from a config, initialised, and its training loss."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from attention_jax.data.tokenizers import BOS, EOS, PAD
from attention_jax.errors import UserError
from attention_jax.models import TRANSLATORS
from attention_jax.modules.attention import with_backend
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.losses import Sums, cross_entropy
from attention_jax.training.description import Description, description_of
from attention_jax.training.state import Variables
from attention_jax.training.step import Loss


def build(config: ConfigDict, source_vocabulary: int, target_vocabulary: int) -> nn.Module:
    """The model that `config.model` names."""
    if config.model.name not in TRANSLATORS:
        raise UserError(f"config.model.name={config.model.name!r}: choose one of {', '.join(TRANSLATORS)}.")
    kwargs: dict[str, Any] = {name: _dtype(config, name) for name in ("dtype", "param_dtype")}
    kwargs |= {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary, **config.model.kwargs}
    if kwargs.get("shared") == "all" and not config.data.joint_vocabulary:
        raise UserError(
            "config.model.kwargs.shared='all' needs one vocabulary of both languages: set "
            "config.data.joint_vocabulary=True, or shared='target'."
        )
    try:
        model = TRANSLATORS[config.model.name](**with_backend(kwargs, config.data.buckets[-1]))
    except KeyError as error:
        raise UserError(f"the config has no 'model.kwargs.{error.args[0]}'.") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"config.model.kwargs: {error}") from None
    require_room(model, config.data.buckets[-1])
    return model


def init(model: nn.Module, key: jax.Array) -> Variables:
    """Fresh variables."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    return dict(model.init(key, tokens, jnp.ones(1, jnp.int32), tokens))


def loss(
    model: nn.Module, variables: Variables, batch: Mapping, dropout: Dropout | None, label_smoothing
) -> tuple[Sums, Variables]:
    """Teacher-forced cross entropy of a batch, in nats, with its target tokens; and the collections it changed."""
    source, target = batch["source"], batch["target"]
    others = [name for name in variables if name != "params"]
    logits, changed = model.apply(variables, source, lengths_of(source), shifted(target), dropout, mutable=others)
    return cross_entropy(logits, target, target != PAD, label_smoothing), dict(changed)


def training_loss(model: nn.Module) -> Loss:
    """The loss of a training step, with the label smoothing of its dynamic values."""

    def of_batch(variables, batch, dropout, hyper):
        return loss(model, variables, batch, dropout, hyper["label_smoothing"])

    return of_batch


def describe(config: ConfigDict, model: nn.Module, rows: int, length: int) -> Description:
    """One training step on so many pairs padded to a length."""
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    batch = {"source": tokens, "target": tokens}
    return description_of(config, functools.partial(init, model), training_loss(model), batch)


def require_room(model: nn.Module, length: int) -> None:
    """Raise UserError where the model has no place for texts of that length."""
    if model.room is not None and model.room < length:
        raise UserError(
            f"config.model.kwargs: there is room for {model.room} words, and texts are padded to {length}. Train with "
            "more (max_length of learned positions, score=location:longest=…)."
        )


def lengths_of(tokens):
    """How many tokens each row has, padding left out."""
    return jnp.sum(tokens != PAD, axis=-1)


def shifted(target):
    """What the decoder reads before each word of the target: never the end, which no word follows."""
    read = jnp.where(target == EOS, PAD, target)
    return jnp.concatenate([jnp.full_like(read[:, :1], BOS), read[:, :-1]], axis=1)


def _dtype(config: ConfigDict, name: str) -> jnp.dtype:
    if config.precision[name] not in ("float32", "bfloat16"):
        raise UserError(f"config.precision.{name}={config.precision[name]!r}: choose float32 or bfloat16.")
    return jnp.dtype(config.precision[name])
