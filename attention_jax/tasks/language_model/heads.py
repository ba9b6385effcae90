"""What every head's weights say of held-out text, at any length: a run's statistics.npz."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from attention_jax import stopping
from attention_jax.data.windows import Rows
from attention_jax.errors import UserError
from attention_jax.files import read_arrays
from attention_jax.tasks.language_model.measuring import texts_of
from attention_jax.tasks.language_model.session import Session
from attention_jax.training.placement import everywhere, whole
from attention_jax.training.state import Variables

KEYS = ("rows", "length", "top")  # of `config.statistics`


def require_usable(session: Session) -> None:
    """Raise UserError for values of `config.statistics` that cannot be used, or for which the model has no room."""
    asked = session.config.statistics
    for name in KEYS:
        if asked[name] < 0:
            raise UserError(f"config.statistics.{name}={asked[name]}: needs 0 or more.")
    try:
        session.evaluated_model.require_room(asked.length)
    except ValueError as error:
        raise UserError(f"config.statistics.length={asked.length}: {error} Lower it.") from None


def write_statistics(session: Session, config: ConfigDict, variables: Variables, folder: Path) -> None:
    """Write statistics.npz, of the first held-out rows, as many and as long as `config.statistics` says.

    It has the fields of `ops.statistics.Statistics`, `[rows, layers, heads, length, …]`, whose parts are equal ones of
    a row; and `[rows, length]`, where each token stands in its text (`positions`), and whether it is one (`is_token`)
    or padding. Nothing is written for 0 rows, and for a model that does not attend.
    """
    asked = config.statistics
    if not asked.rows or not session.evaluated_model.layer.mixing.attends:
        return
    assert session.source.held_out is not None
    held_out = session.source.held_out(asked.rows, asked.length or session.source.trained)
    rows = Rows._make(part if part is None else part[held_out.is_counted.any(axis=-1)] for part in held_out)
    found = [_of_row(session, variables, rows, index) for index in range(len(rows.tokens))]
    kept = {name: np.concatenate(parts) for name, parts in zip(found[0]._fields, zip(*found, strict=True), strict=True)}
    in_order = np.broadcast_to(np.arange(rows.tokens.shape[-1]), rows.tokens.shape)
    kept |= {"positions": in_order if rows.positions is None else rows.positions, "is_token": rows.is_counted}
    np.savez_compressed(folder / "statistics.npz", **kept)  # type: ignore[arg-type]


def read_statistics(folder: Path) -> dict[str, np.ndarray]:
    """What `write_statistics` wrote; nothing if it wrote nothing. Raises UserError for a damaged file."""
    path = folder / "statistics.npz"
    return read_arrays(path) if path.exists() else {}


def _of_row(session: Session, variables: Variables, rows: Rows, index: int) -> Any:
    """The statistics of one row, so that one is held at a time."""
    stopping.poll()
    texts = jax.tree.map(lambda part: part[index : index + 1], texts_of(rows))
    return whole(session.statistics(variables, everywhere(texts, variables)))
