"""What a position encoding looks like once trained, and where it makes attention look."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.modules.mixers import MIXERS
from attention_jax.ops.positions import Encoding, Spec
from attention_jax.tasks.language_model.model import draw_positions
from attention_jax.tasks.language_model.session import Session
from attention_jax.training.state import Variables

SHOWN = 64  # positions of an encoding's portrait
LOOKED_AT = 1.5  # times the trained length: attention is kept at both


def write_portraits(session: Session, config: ConfigDict, folder: Path, variables: Variables) -> None:
    """attention.npz, the weights of every layer and head on one text of each length; and encoding.npz, as `portrait`.

    Attention is kept at the trained length and at one beyond; of layers without attention there is none. The encoding
    is the first layer's where layers have their own.
    """
    np.savez_compressed(folder / "attention.npz", **_attention(session, config, variables))  # type: ignore[arg-type]
    encoding, params = session.measured.new_encoding(), variables["params"]
    own = params.get("encoding") or params["layer_0"].get("encoding", {})
    np.savez_compressed(folder / "encoding.npz", **portrait(encoding.record, encoding.sizes, own))  # type: ignore[arg-type]


def _attention(session: Session, config: ConfigDict, variables: Variables) -> dict[str, np.ndarray]:
    source, kept = session.source, {}
    lengths = () if config.model.mixer in MIXERS else (source.trained, round(LOOKED_AT * source.trained))
    for length in (length for length in lengths if length <= source.lengths[-1]):
        tokens = source.example(config, length)
        positions = draw_positions(session.measured, jax.random.key(0), *tokens.shape)
        kept[str(length)] = np.asarray(session.attention(variables, tokens, positions)[0], np.float16)
    return kept


def portrait(record: Encoding, sizes: Spec, params: Any) -> dict[str, np.ndarray]:
    """What an encoding does to its first positions.

    `matrix` [T, width] is added to embeddings, `bias` [heads, T, T] to scores, and `similarity` [T] is of two tokens
    that are alike but for their distance: their score's part that positions make, its largest value one.
    """
    positions = jnp.arange(min(SHOWN, record.max_length(sizes) or SHOWN))[None]
    alike = jnp.ones((1, sizes.heads, positions.shape[-1], sizes.head_size))
    found: dict[str, Any] = {}
    if record.add is not None:
        matrix = record.add(params, jnp.zeros((1, positions.shape[-1], sizes.width)), positions)[0]
        found["matrix"], found["similarity"] = matrix, _by_distance(matrix @ matrix.T)
    if record.rotate is not None:
        turned = record.rotate(params, alike, positions[:, None])[0, 0]
        found["similarity"] = _by_distance(turned @ turned.T)
    if record.bias is not None:
        bias = jnp.broadcast_to(
            record.bias(params, alike, positions, positions), (1, *alike.shape[1:3], alike.shape[2])
        )
        found["bias"] = jnp.where(jnp.tri(bias.shape[-1], dtype=bool), bias[0], 0)
        found["similarity"] = _by_distance(jnp.exp(bias[0] - bias[0].max(axis=(-1, -2), keepdims=True)).mean(0))
    return {name: np.asarray(array) for name, array in found.items()}


def _by_distance(scores: jax.Array) -> np.ndarray:
    """The mean score of a query and the key 0, 1, … tokens before it, the largest made one."""
    kept = np.asarray(scores)
    means = np.array([np.diagonal(kept, -distance).mean() for distance in range(len(kept))])
    return means / np.abs(means).max()
