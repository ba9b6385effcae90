"""Portraits of a trained position encoding, and the attention weights that it leads to."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.modules.mixers import attends
from attention_jax.ops.positions import Encoding, Spec
from attention_jax.ops.stacking import unstack_layers
from attention_jax.tasks.language_model.model import draw_positions
from attention_jax.tasks.language_model.session import Session
from attention_jax.training.state import Variables

SHOWN = 64  # how many positions a portrait shows
BEYOND = 1.5  # times the trained length: attention is kept there too


def write_portraits(session: Session, config: ConfigDict, folder: Path, variables: Variables) -> None:
    """Write attention.npz, the weights of every layer and head on one text, and encoding.npz, as `portrait` gives it.

    attention.npz has the trained length and one beyond; it is empty for a mixer that does not attend. If layers have
    encodings of their own, the first layer's is kept.
    """
    np.savez_compressed(folder / "attention.npz", **_attention(session, config, variables))  # type: ignore[arg-type]
    encoding, params = session.evaluated_model.new_encoding(), unstack_layers(variables)["params"]
    own = params.get("encoding") or params["layer_0"].get("encoding", {})
    np.savez_compressed(folder / "encoding.npz", **portrait(encoding.record, encoding.sizes, own))  # type: ignore[arg-type]


def _attention(session: Session, config: ConfigDict, variables: Variables) -> dict[str, np.ndarray]:
    source, kept = session.source, {}
    lengths = (source.trained, round(BEYOND * source.trained)) if attends(config.model.mixer) else ()
    for length in (length for length in lengths if length <= source.lengths[-1]):
        tokens = source.example(config, length)
        positions = draw_positions(session.evaluated_model, jnp.asarray(tokens))
        kept[str(length)] = np.asarray(session.attention(variables, tokens, positions)[0], np.float16)
    return kept


def portrait(record: Encoding, sizes: Spec, params: Any) -> dict[str, np.ndarray]:
    """The effect of an encoding at its first T positions.

    `matrix` [T, width] is added to embeddings, and `bias` [heads, T, T] to scores. `similarity` [T] is, for each
    distance of two tokens that are otherwise equal, the part of their score that comes from positions; its largest
    value is one.
    """
    positions = jnp.arange(min(SHOWN, record.max_length(sizes) or SHOWN))[None]
    alike = jnp.ones((1, sizes.heads, positions.shape[-1], sizes.head_size))
    kept: dict[str, Any] = {}
    if record.add is not None:
        matrix = record.add(params, jnp.zeros((1, positions.shape[-1], sizes.width)), positions)[0]
        kept["matrix"], kept["similarity"] = matrix, _by_distance(matrix @ matrix.T)
    if record.rotate is not None:
        turned = record.rotate(params, alike, positions[:, None])[0, 0]
        kept["similarity"] = _by_distance(turned @ turned.T)
    if record.bias is not None:
        bias = jnp.broadcast_to(
            record.bias(params, alike, positions, positions), (1, *alike.shape[1:3], alike.shape[2])
        )
        kept["bias"] = jnp.where(jnp.tri(bias.shape[-1], dtype=bool), bias[0], 0)
        kept["similarity"] = _by_distance(jnp.exp(bias[0] - bias[0].max(axis=(-1, -2), keepdims=True)).mean(0))
    return {name: np.asarray(array, np.float32) for name, array in kept.items()}  # NumPy keeps no bfloat16


def _by_distance(scores: jax.Array) -> np.ndarray:
    """The mean score of a query and the key 0, 1, … tokens before it, scaled so that the largest is one."""
    kept = np.asarray(scores)
    means = np.array([np.diagonal(kept, -distance).mean() for distance in range(len(kept))])
    return means / np.abs(means).max()
