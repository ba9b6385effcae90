"""What may be written in a run's folder: nothing through a link that leads out of it."""

import errno
import os
from collections.abc import Collection
from pathlib import Path
from typing import IO

from attention_jax.errors import UserError
from attention_jax.files import no_link

CANNOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)


def open_lock(path: Path) -> IO[str]:
    """A folder's file to lock. Raises UserError where it cannot be written, or is a link."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        return open(path / ".lock", "a", encoding="utf-8", opener=no_link)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{path}: not a folder: choose another --workdir.") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path / '.lock'}: a link, which is not followed: remove it.") from None
        if error.errno in CANNOT_WRITE:
            raise UserError(
                f"{path}: cannot be written ({error.strerror}): choose another --workdir, or copy it to one of yours."
            ) from None
        raise


def is_writable(path: Path) -> bool:
    """Whether this process may write in a folder that is there."""
    return not path.is_dir() or os.access(path, os.W_OK)


def refuse_links(path: Path, allowed: Collection[str] = ("data",)) -> None:
    """Raise UserError where a link inside a run's or sweep's folder leads out of it: nothing is written through one.

    A cell's data may lie elsewhere: they are imported whole, and only read after that. The folder itself may be a link.
    """
    home = path.resolve()
    inside = [child for name in ("", "figures", "tables") for child in (path / name).glob("*")]
    for child in (*inside, *path.glob(".*")):
        if child.is_symlink() and child.name not in allowed and not child.resolve().is_relative_to(home):
            raise UserError(
                f"{child}: a link out of the folder, which nothing is written through: replace it by what it leads to."
            )
