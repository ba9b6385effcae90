"""Translation: any encoder–decoder on any corpus of sentence pairs."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.batching import Batches, in_order, make_buckets
from attention_jax.data.corpus import Corpus, DataConfig, Reference, Sentences, Split, load_or_import
from attention_jax.data.tokenizers import BOS, EOS, PAD, split_words, until_end
from attention_jax.decoding.greedy import greedy
from attention_jax.errors import UserError
from attention_jax.evaluation.alignment import agreement, monotonicity
from attention_jax.evaluation.bleu import book_bleu, sacre_bleu
from attention_jax.models import TRANSLATORS
from attention_jax.ops.losses import Sums, cross_entropy
from attention_jax.runs.folder import Run
from attention_jax.training.loop import Task


def lengths_of(tokens):
    """Sentence lengths of padded rows."""
    return jnp.sum(tokens != PAD, axis=-1)


def loss(model: nn.Module, variables, batch, dropout, label_smoothing) -> Sums:
    """Teacher-forced cross entropy of a batch, in nats, with its target tokens."""
    target = batch["target"]
    inputs = jnp.concatenate([jnp.full_like(target[:, :1], BOS), target[:, :-1]], axis=1)
    logits = model.apply(variables, batch["source"], lengths_of(batch["source"]), inputs, dropout)
    return cross_entropy(logits, target, target != PAD, label_smoothing)
