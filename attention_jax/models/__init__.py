"""Whole models, by the names that configs use."""

import functools
from collections.abc import Callable

import flax.linen as nn

from attention_jax.models.bahdanau import Bahdanau
from attention_jax.models.luong import Luong
from attention_jax.models.transformer import Transformer

TRANSLATORS: dict[str, Callable[..., nn.Module]] = {
    "seq2seq": functools.partial(Bahdanau, attends=False),
    "bahdanau": Bahdanau,
    "luong": Luong,
    "transformer": Transformer,
}
