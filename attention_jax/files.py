"""Files that are there whole or not at all, and what is read of files of JSON and of arrays."""

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from attention_jax.errors import UserError


def write_whole(path: Path, text: str) -> None:
    """Write aside, then rename. Raises OSError where that cannot be done; the file aside is then removed.

    A link is never written through: the rename replaces one, and one that lies aside is refused.
    """
    aside = path.with_name(path.name + ".partial")
    try:
        with open(aside, "w", encoding="utf-8", opener=no_link) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def read_json(content: bytes | str, **options: Any) -> Any:
    """What JSON says. Raises ValueError for what is none, is nested too deep, or has half a character."""
    try:
        found = json.loads(content if isinstance(content, str) else content.decode("utf-8-sig"), **options)
        if isinstance(content, str) or b"\\u" in content:  # only these can say half a character
            json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate can be neither written nor shown
    except RecursionError:
        raise ValueError("nested too deep") from None
    return found


def read_arrays(path: Path, only: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, or those of some names that it has. Pickled objects are never read.

    Raises UserError for a file that is missing or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files if only is None or name in only}
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}). Put the original file back.") from None
    except Exception as error:  # zipfile, zlib and NumPy each have their own
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path}: damaged ({why}). Put the original file back.") from None


def no_link(path: str, flags: int) -> int:
    """An opener for `open` that raises OSError (ELOOP) where a link would be written through."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
