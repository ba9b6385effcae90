"""Whole models, by the names that configs use."""

from attention_jax.models.bahdanau import Bahdanau

TRANSLATORS = {"bahdanau": Bahdanau}
