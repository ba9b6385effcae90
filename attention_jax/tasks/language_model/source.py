"""What a language model is trained on and measured with."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from attention_jax.models.language_model import LanguageModel
from attention_jax.tasks.language_model.model import Texts
from attention_jax.training.state import Variables

Curves = dict[str, dict[str, float]]  # measure → length → value


class Source(NamedTuple):
    """What a language model is trained on and measured with."""

    vocabulary: int
    trained: int  # the length that training saw at most
    lengths: tuple[int, ...]  # that are measured
    places: int  # of the longest text
    call: Callable[[int, int, int], tuple[Any, np.ndarray]]  # (seed, step, stop) → table, rows
    texts: Callable[[Any, Any], Texts]  # (rows of the table, dynamic values) → a batch
    measure: Callable[[LanguageModel], Callable[[Variables, ConfigDict], Curves]]
    example: Callable[[ConfigDict, int], Int[Array, "1 t"]]  # a text of a length, to look at
    steps_per_epoch: int
    traced: Callable[[ConfigDict], dict[str, Any]] = lambda config: {}
