"""A language model: built from a config, initialised; its loss, and the positions of its tokens."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key
from ml_collections import ConfigDict

from attention_jax.backends import AUTO, OR
from attention_jax.models.language_model import KIND, LanguageModel, mask_of
from attention_jax.modules.mixers import attends
from attention_jax.modules.spec import with_backend
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.losses import Sums, cross_entropy
from attention_jax.ops.masking import Mask
from attention_jax.ops.statistics import Statistics
from attention_jax.tasks.sections import of_section, tell_once, types_of
from attention_jax.training.state import Variables

# Of `config.model`: how it is drawn and learnt, not what it computes.
WIDTHS = ("parametrization", "base_width", "base_heads")
POSITIONS = 999  # folded into a step's key to draw positions


class Texts(NamedTuple):
    """A batch: `targets[..., i]` follows `tokens[..., i]`; the loss is of the targets that are counted.

    If a row is one text, `is_text` is False for padding (None: there is none). If rows are packed documents, `segments`
    and `positions` are those of `data.windows.Rows`.
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
        """A batch of whole texts, whose tokens each follow the one before.

        The last token of a text predicts nothing and is read by no other token: it counts as padding.
        """
        return cls(tokens[:, :-1], tokens[:, 1:], is_counted[:, 1:], is_text[:, 1:])


def build(
    config: ConfigDict, vocabulary: int, length: int, has_segments: bool = False, is_padded: bool = False
) -> LanguageModel:
    """The model of `config.model`, for texts of up to `length` tokens, perhaps packed into rows, or padded.

    Raises UserError for values that do not fit.
    """
    section = {name: value for name, value in config.model.to_dict().items() if name not in WIDTHS}
    fields = {"vocabulary": vocabulary, **section, **types_of(config)}
    mask = jax.eval_shape(lambda: _mask_of(length, has_segments, is_padded))
    with of_section("config.model"):
        _require_attending(config.model)
        return LanguageModel.of(**with_backend(fields, length, [mask], tell_once))


def _require_attending(section: ConfigDict) -> None:
    """Raise ValueError for a backend by its name alone where nothing attends."""
    if not attends(section.mixer) and not {"reference", AUTO} & {*section.backend.split(OR)}:
        raise ValueError(
            f"backend={section.backend!r}: mixer={section.mixer!r} has no attention to compute. Set backend={AUTO!r}."
        )


def _mask_of(length: int, has_segments: bool, is_padded: bool) -> Mask | None:
    row = jnp.ones((1, length), jnp.int32)
    return mask_of(length, row if has_segments else None, row > 0 if has_segments or is_padded else None)


def init(model: LanguageModel, key: Key[Array, ""]) -> Variables:
    """Fresh variables."""
    return dict(model.init(key, jnp.zeros((1, 1), jnp.int32)))


def loss(
    model: LanguageModel, variables: Variables, texts: Texts, dropout: Dropout, label_smoothing
) -> tuple[Sums, Variables]:
    """Cross entropy of the targets that count, in nats, and their number; and the collections that it changed."""
    count, length = texts.tokens.shape
    drawn = draw_positions(model, dropout.fold(POSITIONS).key, count, length, dropout.row)
    others = [name for name in variables if name != "params"]
    logits, changed = model.apply(
        variables, texts.tokens, positions_of(texts, drawn), texts.segments, dropout, texts.is_text, mutable=others
    )
    return cross_entropy(logits, texts.targets, texts.is_counted, label_smoothing), dict(changed)


def evaluation_loss(model: LanguageModel, variables: Variables, texts: Texts) -> Sums:
    """The loss without dropout or smoothing; texts of one shape always get the same positions."""
    positions = positions_of(texts, draw_positions(model, jax.random.key(0), *texts.tokens.shape))
    logits: Any = model.apply(variables, texts.tokens, positions, texts.segments, None, texts.is_text)
    return cross_entropy(logits, texts.targets, texts.is_counted)


def positions_of(texts: Texts, drawn: Int[Array, "batch t"] | None) -> Int[Array, "batch t"] | None:
    """The positions of tokens, None if in order; `drawn` are the encoding's, in packed rows for each document anew."""
    if drawn is None or texts.positions is None:
        return texts.positions if drawn is None else drawn
    return jnp.take_along_axis(drawn, texts.positions, axis=1)


def draw_positions(
    model: LanguageModel, key: Key[Array, ""], rows: int, length: int, first: int | Array = 0
) -> Int[Array, "rows t"] | None:
    """Positions for each text, if the encoding draws them at random; else None, for positions in order.

    `first` is the number of the first text in its batch.
    """
    draw = model.new_encoding().record.sample_positions
    if draw is None:
        return None
    return jax.vmap(lambda row: draw(jax.random.fold_in(key, row), length))(first + jnp.arange(rows))


def statistics_of(model: LanguageModel, variables: Variables, texts: Texts, top: int) -> Statistics:
    """What every head's weights say, `[batch, layers, heads, T, …]`; texts of one shape get the same positions."""
    positions = positions_of(texts, draw_positions(model, jax.random.key(0), *texts.tokens.shape))
    found: Any = model.apply(variables, texts.tokens, positions, texts.segments, top=top, method="statistics")
    return found[KIND]


def logits_of(model: LanguageModel, variables: Variables, tokens: Int[Array, "batch t"]) -> Array:
    """Logits of every next token; tokens of one shape always get the same positions."""
    logits: Any = model.apply(variables, tokens, draw_positions(model, jax.random.key(0), *tokens.shape))
    return logits
