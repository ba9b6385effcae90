"""What an import wrote is what is read: a digest of every file, kept in meta.json and compared when it is opened."""

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from attention_jax.errors import UserError

META = "meta.json"


def digest_of(*paths: Path) -> str:
    """SHA-256 of files, one after another."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def import_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """The folder, without links, that `write` has filled: now, where there is none yet, whole or not at all."""
    folder = folder.resolve()  # cells of a sweep have a link, which may lead to nothing yet
    if not folder.exists():
        aside = folder.with_name(folder.name + ".partial")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            write(aside)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        os.replace(aside, folder)
    return folder


def write_meta(folder: Path, meta: dict) -> None:
    """Write what an import found, and a digest of every file that it wrote."""
    digests = {path.name: digest_of(path) for path in sorted(folder.iterdir())}
    (folder / META).write_text(json.dumps({**meta, "digests": digests}, indent=2) + "\n", encoding="utf-8")


def read_meta(folder: Path, keys: Collection[str]) -> dict:
    """What an import found. Raises UserError where the file is missing, cut short or has not all `keys`."""
    path = folder / META
    _require_file(path)
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise _unusable(path, "damaged: it is not the JSON that the import wrote") from None
    absent = [key for key in keys if key not in meta] if isinstance(meta, dict) else keys
    if absent:
        raise _unusable(path, f"damaged: it does not say {', '.join(absent)}")
    return meta


def require_intact(folder: Path, meta: dict, names: Iterable[str], tokens: Iterable[str]) -> None:
    """Raise UserError where one of the import's files is missing or was changed.

    An older import has no digest of each file, but one of its `tokens`, one file after another.
    """
    paths = [folder / name for name in names]
    for path in paths:
        _require_file(path)
    if "digests" not in meta:
        if _remembered(*(folder / name for name in tokens)) != meta["fingerprint"]:
            raise _unusable(folder, "damaged: its token arrays are not those of the import")
        return
    for path in paths:
        if _remembered(path) != meta["digests"].get(path.name):
            raise _unusable(path, "damaged: its digest is not that of the import")


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise _unusable(path, "missing")


def _unusable(path: Path, problem: str) -> UserError:
    folder = path if path.is_dir() else path.parent
    return UserError(f"{path}: {problem}. Remove the folder {folder}, and its run's next command imports it again.")


def _remembered(*paths: Path) -> str:
    """Their digest, without reading again what has not changed: a mode opens its data more than once."""
    files = [(path.resolve(), path.stat()) for path in paths]  # a sweep's cells share a folder through links
    return _digest_of_unchanged(tuple((path, found.st_mtime_ns, found.st_size) for path, found in files))


@functools.cache
def _digest_of_unchanged(files: tuple[tuple[Path, int, int], ...]) -> str:
    return digest_of(*(path for path, _, _ in files))
