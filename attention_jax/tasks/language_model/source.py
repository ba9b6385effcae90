"""The data of a language model, as training and measuring need it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Array, Int
from ml_collections import ConfigDict

from attention_jax.data.text import Text
from attention_jax.data.text_tokenizers import digest
from attention_jax.data.windows import Rows
from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.tasks.language_model.model import Texts
from attention_jax.training.feeding import Batches
from attention_jax.training.state import Variables

Curves = dict[str, dict[str, float]]  # measure → length → value
Measure = Callable[[Variables, ConfigDict], dict[str, Any]]  # → the metrics, nested


class Source(NamedTuple):
    """The data of a language model, as training and measuring need it."""

    vocabulary: int
    trained: int  # the longest text in training
    lengths: tuple[int, ...]  # of texts that are measured
    longest: int  # tokens of the longest text of all
    length_keys: str  # the config's keys that decide `longest`, with their values
    batches: Callable[[int, int, int], Batches]  # (seed, step, stop) → those of one call
    texts: Callable[[Any, Any], Texts]  # (rows of the table, dynamic values) → a batch
    measure: Callable[[LanguageModel], Measure]
    example: Callable[[ConfigDict, int], Int[Array, "1 t"]]  # the tokens of one text of a length
    steps_per_epoch: int
    traced: Callable[[ConfigDict], dict[str, Any]] = lambda config: {}  # dynamic values that only this source has
    measure_so_far: Callable[[LanguageModel], Measure] = lambda model: lambda variables, config: {}  # during training
    measured: tuple[str, ...] = ()  # what the names of its metrics open with
    has_segments: bool = False  # whether rows are packed documents
    is_padded: bool = False  # whether a row is one text, which may be shorter
    held_out: Callable[[int, int], Rows] | None = None  # (how many, their length) → the first rows, with padding
    text: Text | None = None  # the text with its tokenizer, if there is one

    @property
    def tokenizer_digest(self) -> str:
        """The digest of the tokenizer that variables are trained with; "" without a tokenizer."""
        return "" if self.text is None else digest(self.text.tokenizer)


Opener = Callable[[ConfigDict, Path | None], Source]  # (config, the folder of its data; None: only shapes are right)


def length_keys(data: ConfigDict) -> str:
    """The key that makes texts longer than those of training, with its value."""
    return f"config.data.factors={data.factors}"


def lengths_of(data: ConfigDict) -> tuple[int, ...]:
    """The lengths that are measured: `data.factors` times `data.length`. Raises UserError for factors without sense."""
    if not data.factors or round(min(data.factors) * data.length) < 1 or max(data.factors) < 1:
        raise UserError(f"config.data.factors={data.factors}: needs numbers more than 0, and one that is 1 or more.")
    return tuple(sorted({round(factor * data.length) for factor in data.factors}))


def require_positive(data: ConfigDict, *names: str) -> None:
    """Raise UserError if one of these keys of `config.data` is less than 1."""
    for name in names:
        if data[name] < 1:
            raise UserError(f"config.data.{name}={data[name]}: needs 1 or more.")
