"""What a language model is trained on and measured with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from attention_jax.data.text import Text
from attention_jax.data.text_tokenizers import digest
from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.tasks.language_model.model import Texts
from attention_jax.training.state import Variables

Curves = dict[str, dict[str, float]]  # measure → length → value
Measure = Callable[[Variables, ConfigDict], dict[str, Any]]  # what was measured, nested


class Source(NamedTuple):
    """What a language model is trained on and measured with."""

    vocabulary: int
    trained: int  # the length that training saw at most
    lengths: tuple[int, ...]  # that are measured
    places: int  # of the longest text
    told: str  # the keys of the config that say so, with their values
    call: Callable[[int, int, int], tuple[Any, np.ndarray]]  # (seed, step, stop) → table, rows
    texts: Callable[[Any, Any], Texts]  # (rows of the table, dynamic values) → a batch
    measure: Callable[[LanguageModel], Measure]
    example: Callable[[ConfigDict, int], Int[Array, "1 t"]]  # the tokens of a text of a length, to look at
    steps_per_epoch: int
    traced: Callable[[ConfigDict], dict[str, Any]] = lambda config: {}
    measure_so_far: Callable[[LanguageModel], Measure] = lambda model: lambda variables, config: {}  # while it trains
    is_table_shared: bool = True  # whether a step's table is the same for every seed
    has_segments: bool = False  # whether rows are packed documents
    text: Text | None = None  # where there is one, with its tokenizer

    @property
    def tokens_are(self) -> str:
        """What tells its tokens from others, for what is trained on them; "" where they have no tokenizer."""
        return "" if self.text is None else digest(self.text.tokenizer)


Opener = Callable[[ConfigDict, Path | None], Source]  # a config, the folder of its data; None: only shapes are right


def lengths_told(data: ConfigDict) -> str:
    """The key that makes texts longer than those of training."""
    return f"config.data.factors={data.factors}"


def lengths_of(data: ConfigDict) -> tuple[int, ...]:
    """The lengths that are measured: `data.factors` times `data.length`. Raises UserError where they are none."""
    if not data.factors or round(min(data.factors) * data.length) < 1 or max(data.factors) < 1:
        raise UserError(f"config.data.factors={data.factors}: needs numbers more than 0, and one that is 1 or more.")
    return tuple(sorted({round(factor * data.length) for factor in data.factors}))


def require_positive(data: ConfigDict, *names: str) -> None:
    """Raise UserError where one of these keys of `config.data` is less than 1."""
    for name in names:
        if data[name] < 1:
            raise UserError(f"config.data.{name}={data[name]}: needs 1 or more.")
