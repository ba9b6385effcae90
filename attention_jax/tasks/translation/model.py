"""A translation model: built from a config, initialised; its training loss."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from attention_jax.backends import require_mark
from attention_jax.data.config import require_buckets
from attention_jax.data.tokenizers import BOS, EOS, PAD
from attention_jax.errors import UserError
from attention_jax.models import TRANSLATORS
from attention_jax.models.placement import PLACEMENTS
from attention_jax.models.transformer import Transformer
from attention_jax.modules.spec import with_backend
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.losses import Sums, cross_entropy
from attention_jax.ops.masking import causal_mask, valid_lens_mask
from attention_jax.tasks.needs import counted, held_bytes, in_sight, unseen_flops
from attention_jax.tasks.sections import of_section, tell_once, types_of
from attention_jax.training.cost import flops
from attention_jax.training.description import Description, description_of, step_of
from attention_jax.training.placement import Placement
from attention_jax.training.saved import Init
from attention_jax.training.state import Variables
from attention_jax.training.step import Loss, passes


def build(config: ConfigDict, source_vocabulary: int, target_vocabulary: int) -> nn.Module:
    """The model that `config.model` names. Raises UserError for values that do not fit."""
    require_buckets(config.data.buckets)
    if config.model.name not in TRANSLATORS:
        raise UserError(f"config.model.name={config.model.name!r}: choose one of {', '.join(TRANSLATORS)}.")
    sizes = {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary}
    kwargs: dict[str, Any] = types_of(config) | sizes | config.model.kwargs.to_dict()
    if kwargs.get("shared") == "all" and not config.data.joint_vocabulary:
        raise UserError(
            "config.model.kwargs.shared='all': needs one vocabulary of both languages. Set "
            "config.data.joint_vocabulary=True, or choose shared='target'."
        )
    longest = config.data.buckets[-1]
    masks = [jax.eval_shape(lambda: valid_lens_mask(jnp.ones(1, jnp.int32), longest)), causal_mask(longest, longest)]
    with of_section("config.model.kwargs"):
        model = TRANSLATORS[config.model.name](**with_backend(kwargs, longest, masks, tell_once))
    require_room(model, longest)
    return model


def init(model: nn.Module, key: jax.Array) -> Variables:
    """Fresh variables."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    return dict(model.init(key, tokens, jnp.ones(1, jnp.int32), tokens))


@functools.cache
def init_of(model: nn.Module) -> Init:
    """key → fresh variables; the same function for the same model, of which JAX therefore keeps what it traced."""
    return functools.partial(init, model)


def loss(
    model: nn.Module, variables: Variables, batch: Mapping, dropout: Dropout | None, label_smoothing
) -> tuple[Sums, Variables]:
    """Teacher-forced cross entropy of a batch, in nats, and its target tokens; and the collections that it changed."""
    source, target = batch["source"], batch["target"]
    others = [name for name in variables if name != "params"]
    logits, changed = model.apply(variables, source, lengths_of(source), shifted(target), dropout, mutable=others)
    return cross_entropy(logits, target, target != PAD, label_smoothing), dict(changed)


def training_loss(model: nn.Module) -> Loss:
    """The loss of a training step; label smoothing is one of its dynamic values."""

    def of_batch(variables, batch, dropout, hyper):
        return loss(model, variables, batch, dropout, hyper["label_smoothing"])

    return of_batch


def describe(config: ConfigDict, model: nn.Module, rows: int, length: int) -> Description:
    """The description of a training step on `rows` pairs that are padded to `length`."""
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    batch = {"source": tokens, "target": tokens}
    shapes = description_of(config, init_of(model), training_loss(model), batch, placement_of(config))
    return shapes._replace(
        needed=functools.partial(model_flops, config, model, rows, length),
        held=functools.partial(held_bytes, model) if isinstance(model, Transformer) else None,
        inspect=functools.partial(require_mark, model.backend),
        in_sight=step_of(config, training_loss(in_sight(model))),
    )


def model_flops(config: ConfigDict, model: nn.Module, rows: int, length: int) -> float:
    """The FLOPs of a training step that the model needs, however they are computed: see `tasks/needs.py`."""
    model = counted(model)
    whole = flops(functools.partial(passes, training_loss(model)), *describe(config, model, rows, length).arguments)
    return whole - unseen_flops(model, rows, length)


def placement_of(config: ConfigDict) -> Placement:
    """Where the model's parameters lie."""
    return Placement(PLACEMENTS[config.model.name])


def require_room(model: nn.Module, length: int) -> None:
    """Raise UserError if the model has no room for texts of that length."""
    if model.room is not None and model.room < length:
        raise UserError(
            f"config.model.kwargs: the model has room for {model.room} tokens, and texts are padded to {length}. Train "
            "with more: raise max_length for learned positions, or longest for score='location:longest=…'."
        )


def require_beams(model: nn.Module, beams: int) -> None:
    """Raise UserError if the model cannot be searched with so many beams."""
    if isinstance(model, Transformer):
        with of_section("config.model.kwargs"):
            model.require_texts(beams)


def lengths_of(tokens):
    """How many tokens each row has without padding."""
    return jnp.sum(tokens != PAD, axis=-1)


def shifted(target):
    """The decoder's input before each word of the target; the end, which no word follows, becomes padding."""
    read = jnp.where(target == EOS, PAD, target)
    return jnp.concatenate([jnp.full_like(read[:, :1], BOS), read[:, :-1]], axis=1)
