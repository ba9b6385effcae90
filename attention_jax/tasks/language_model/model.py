"""A language model: built from a config, initialised, its loss, and where its tokens stand."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.attention import with_backend
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.losses import Sums, cross_entropy
from attention_jax.training.state import Variables

POSITIONS = 999  # folded into a step's key for what is drawn of positions


class Texts(NamedTuple):
    """Tokens, which of them count as predicted (never the first), and which are not padding."""

    tokens: Int[Array, "batch t"]
    is_counted: Bool[Array, "batch t"]
    is_text: Bool[Array, "batch t"]


def build(config: ConfigDict, vocabulary: int, length: int) -> LanguageModel:
    """The model of `config.model`, for texts of up to `length` tokens. Raises UserError where its values do not fit."""
    types = {name: jnp.dtype(config.precision[name]) for name in ("dtype", "param_dtype")}
    try:
        return LanguageModel.of(vocabulary=vocabulary, **with_backend(config.model.to_dict(), length), **types)
    except (TypeError, ValueError) as error:
        raise UserError(f"config.model: {error}") from None


def init(model: LanguageModel, key: Key[Array, ""]) -> Variables:
    """Fresh variables."""
    return dict(model.init(key, jnp.zeros((1, 1), jnp.int32)))


def loss(
    model: LanguageModel, variables: Variables, texts: Texts, dropout: Dropout, label_smoothing
) -> tuple[Sums, Variables]:
    """Cross entropy of the tokens that count, in nats, and how many they are; and the collections it changed.

    A token after which there is only padding predicts nothing, and is padding to the model: it is read by nothing else.
    """
    tokens = texts.tokens
    positions = draw_positions(model, dropout.fold(POSITIONS).key, *tokens[:, 1:].shape)
    others = [name for name in variables if name != "params"]
    logits, changed = model.apply(
        variables, tokens[:, :-1], positions, None, dropout, texts.is_text[:, 1:], mutable=others
    )
    return cross_entropy(logits, tokens[:, 1:], texts.is_counted[:, 1:], label_smoothing), dict(changed)


def draw_positions(model: LanguageModel, key: Key[Array, ""], rows: int, length: int) -> Int[Array, "rows t"] | None:
    """Positions of each text's own where the encoding draws them, else None: in order."""
    draw = model.new_encoding().record.sample_positions
    return None if draw is None else jax.vmap(lambda one: draw(one, length))(jax.random.split(key, rows))


def logits_of(model: LanguageModel, variables: Variables, tokens: Int[Array, "batch t"]) -> Array:
    """Logits of every next token; tokens of one shape always get the same positions."""
    logits: Any = model.apply(variables, tokens, draw_positions(model, jax.random.key(0), *tokens.shape))
    return logits
