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
    """A batch: `targets[..., i]` follows `tokens[..., i]`, and which of the targets count as predicted.

    Where a row is one text, `is_text` tells which tokens are not padding (None: all). Where rows are packed documents,
    `segments` and `positions` are those of `data.windows.Rows`.
    """

    tokens: Int[Array, "batch t"]
    targets: Int[Array, "batch t"]
    is_counted: Bool[Array, "batch t"]
    is_text: Bool[Array, "batch t"] | None = None
    segments: Int[Array, "batch t"] | None = None
    positions: Int[Array, "batch t"] | None = None

    @classmethod
    def of_whole(
        cls, tokens: Int[Array, "batch n"], is_counted: Bool[Array, "batch n"], is_text: Bool[Array, "batch n"]
    ) -> "Texts":
        """Texts whose tokens each follow the one before; a token after which there is only padding predicts nothing.

        It is padding to the model too: it is read by nothing else.
        """
        return cls(tokens[:, :-1], tokens[:, 1:], is_counted[:, 1:], is_text[:, 1:])


def build(config: ConfigDict, vocabulary: int, length: int) -> LanguageModel:
    """The model of `config.model`, for texts of up to `length` tokens. Raises UserError where its values do not fit."""
    types = {name: jnp.dtype(config.precision[name]) for name in ("dtype", "param_dtype")}
    try:
        return LanguageModel.of(vocabulary=vocabulary, **with_backend(config.model.to_dict(), length), **types)
    except KeyError as error:
        raise UserError(f"the config has no 'model.{error.args[0]}'.") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"config.model: {error}") from None


def init(model: LanguageModel, key: Key[Array, ""]) -> Variables:
    """Fresh variables."""
    return dict(model.init(key, jnp.zeros((1, 1), jnp.int32)))


def loss(
    model: LanguageModel, variables: Variables, texts: Texts, dropout: Dropout, label_smoothing
) -> tuple[Sums, Variables]:
    """Cross entropy of the targets that count, in nats, and how many they are; and the collections it changed."""
    drawn = draw_positions(model, dropout.fold(POSITIONS).key, *texts.tokens.shape)
    others = [name for name in variables if name != "params"]
    logits, changed = model.apply(
        variables, texts.tokens, placed(texts, drawn), texts.segments, dropout, texts.is_text, mutable=others
    )
    return cross_entropy(logits, texts.targets, texts.is_counted, label_smoothing), dict(changed)


def measured_loss(model: LanguageModel, variables: Variables, texts: Texts) -> Sums:
    """The same without dropout or smoothing; texts of one shape always get the same positions."""
    positions = placed(texts, draw_positions(model, jax.random.key(0), *texts.tokens.shape))
    logits: Any = model.apply(variables, texts.tokens, positions, texts.segments, None, texts.is_text)
    return cross_entropy(logits, texts.targets, texts.is_counted)


def placed(texts: Texts, drawn: Int[Array, "batch t"] | None) -> Int[Array, "batch t"] | None:
    """Where tokens stand: in order (None), or where the encoding has drawn it; in packed rows each document anew."""
    if drawn is None or texts.positions is None:
        return texts.positions if drawn is None else drawn
    return jnp.take_along_axis(drawn, texts.positions, axis=1)


def draw_positions(model: LanguageModel, key: Key[Array, ""], rows: int, length: int) -> Int[Array, "rows t"] | None:
    """Positions of each text's own where the encoding draws them, else None: in order."""
    draw = model.new_encoding().record.sample_positions
    return None if draw is None else jax.vmap(lambda one: draw(one, length))(jax.random.split(key, rows))


def logits_of(model: LanguageModel, variables: Variables, tokens: Int[Array, "batch t"]) -> Array:
    """Logits of every next token; tokens of one shape always get the same positions."""
    logits: Any = model.apply(variables, tokens, draw_positions(model, jax.random.key(0), *tokens.shape))
    return logits
