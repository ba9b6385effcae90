"""Whole models, by the names that configs use."""

from collections.abc import Callable

import flax.linen as nn

from attention_jax.models.recurrent import RecurrentTranslator
from attention_jax.models.transformer import Transformer

TRANSLATORS: dict[str, Callable[..., nn.Module]] = {"recurrent": RecurrentTranslator, "transformer": Transformer.of}
