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
from attention_jax.ops.dropout import Dropout, joined
from attention_jax.ops.losses import Sums, cross_entropy
from attention_jax.ops.masking import Mask
from attention_jax.ops.statistics import Statistics
from attention_jax.tasks.sections import of_section, tell_once, types_of
from attention_jax.training.state import Variables

# Of `config.model`: how it is drawn and learnt, not what it computes.
WIDTHS = ("parametrization", "base_width", "base_heads")
POSITIONS = 999  # folded into a step's key to draw positions
PARTS = 8  # equal ones of a row, of which it is told how much weight lies on each


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
        if not attends(config.model.mixer):
            fields["backend"] = "reference"
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
    rows = dropout.row + jnp.arange(len(texts.tokens))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(dropout.fold(POSITIONS).key, rows)
    positions = positions_of(model, texts, keys)
    others = [name for name in variables if name != "params"]
    logits, changed = model.apply(
        variables, texts.tokens, positions, texts.segments, dropout, texts.is_text, mutable=others
    )
    return cross_entropy(logits, texts.targets, texts.is_counted, label_smoothing), dict(changed)


def evaluation_loss(model: LanguageModel, variables: Variables, texts: Texts) -> Sums:
    """The loss without dropout or smoothing; a row always gets the same positions."""
    logits: Any = model.apply(variables, texts.tokens, positions_of(model, texts), texts.segments, None, texts.is_text)
    return cross_entropy(logits, texts.targets, texts.is_counted)


def positions_of(
    model: LanguageModel, texts: Texts, keys: Key[Array, " batch"] | None = None
) -> Int[Array, "batch t"] | None:
    """The positions of tokens: those that the encoding draws, else those that texts have; None if in order."""
    drawn = draw_positions(model, texts.tokens, texts.segments, texts.is_text, keys)
    return texts.positions if drawn is None else drawn


def draw_positions(
    model: LanguageModel,
    tokens: Int[Array, "batch t"],
    segments: Int[Array, "batch t"] | None = None,
    is_text: Bool[Array, "batch t"] | None = None,
    keys: Key[Array, " batch"] | None = None,
) -> Int[Array, "batch t"] | None:
    """Positions of each row's tokens, if the encoding draws them at random; else None, for positions in order.

    They are drawn for as many tokens as a text has, whatever stands beside it in its row. A row's key, unless `keys`
    has it, is made of its tokens: neither padding nor other rows of a batch change what it draws.
    """
    draw = model.new_encoding().record.sample_positions
    if draw is None:
        return None
    index = jnp.arange(tokens.shape[-1])[None]
    text = jnp.ones_like(tokens) if is_text is None else is_text.astype(jnp.int32)
    text = text if segments is None else segments
    begins = jnp.where(jnp.diff(text, axis=1, prepend=text[:, :1]) != 0, index, 0)
    first = jnp.argmax(text > 0, axis=1)
    if keys is None:
        hashed = joined(joined(jnp.uint32(0), tokens.astype(jnp.uint32)), (index - first[:, None]).astype(jnp.uint32))
        of_rows = jnp.sum(jnp.where(text > 0, hashed, 0), axis=1, dtype=jnp.uint32)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), of_rows)
    return jax.vmap(draw)(keys, jax.lax.cummax(begins, axis=1), first)


def statistics_of(model: LanguageModel, variables: Variables, texts: Texts, top: int, num_parts: int = 0) -> Statistics:
    """What every head's weights say, `[batch, layers, heads, T, …]`; a row always gets the same positions.

    Its parts are as many equal ones of a row.
    """
    length = texts.tokens.shape[1]
    parts = jnp.arange(length)[None] * num_parts // length if num_parts else None
    asked: dict[str, Any] = {"top": top, "parts": parts, "num_parts": num_parts, "method": "statistics"}
    found: Any = model.apply(variables, texts.tokens, positions_of(model, texts), texts.segments, **asked)
    return found[KIND]


def logits_of(
    model: LanguageModel,
    variables: Variables,
    tokens: Int[Array, "batch t"],
    is_text: Bool[Array, "batch t"] | None = None,
) -> Array:
    """Logits of every next token; a row always gets the same positions, which are drawn for its text alone."""
    logits: Any = model.apply(variables, tokens, draw_positions(model, tokens, is_text=is_text))
    return logits
