"""Digests that prove an import's files unchanged: meta.json has one for every file, compared when it is opened."""

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attention_jax.errors import UserError
from attention_jax.files import read_json
from attention_jax.stopping import poll_alone

META = "meta.json"


def digest_of(*paths: Path) -> str:
    """The SHA-256 digest of files, one after another."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(2**20):
                poll_alone()
                digest.update(block)
    return digest.hexdigest()


def identity_of(*paths: Path) -> str:
    """A digest of files that says where each ends; one file's own."""
    digests = [digest_of(path) for path in paths]
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def import_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """The folder, links resolved, after `write` has filled it if it was not there: wholly or not at all."""
    folder = folder.resolve()  # a cell of a sweep has a link, perhaps to a folder that is not there yet
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
    """Write meta.json: `meta`, and a digest of every file in the folder."""
    digests = {path.name: digest_of(path) for path in sorted(folder.iterdir())}
    digests[META] = _seal({**meta, "digests": digests})
    (folder / META).write_text(json.dumps({**meta, "digests": digests}, indent=2) + "\n", encoding="utf-8")


def _seal(meta: Mapping[str, Any]) -> str:
    """The digest of meta.json itself, which is kept beside those of the other files."""
    others = {name: digest for name, digest in meta["digests"].items() if name != META}
    return hashlib.sha256(json.dumps({**meta, "digests": others}).encode()).hexdigest()


def read_meta(folder: Path, keys: Mapping[str, type]) -> dict:
    """The import's meta.json. Raises UserError if it is missing or changed, or a key is not of its type in `keys`."""
    path = folder / META
    _require_file(path)
    try:
        meta = read_json(path.read_bytes())
    except ValueError:
        raise unusable(path, "damaged: it is not the JSON that the import wrote") from None
    absent = [key for key in keys if key not in meta] if isinstance(meta, dict) else keys
    if absent:
        raise unusable(path, f"damaged: it has no {', '.join(absent)}")
    known = {**keys, **({"digests": dict} if "digests" in meta else {})}  # an older import has none
    if wrong := [key for key, kind in known.items() if not isinstance(meta[key], kind)]:
        raise unusable(path, f"damaged: {wrong[0]} is {meta[wrong[0]]!r}")
    if META in meta.get("digests", ()) and meta["digests"][META] != _seal(meta):
        raise unusable(path, "damaged: its digest is not that of the import")
    return meta


def require_intact(folder: Path, meta: dict, names: Iterable[str], tokens: Iterable[str]) -> None:
    """Raise UserError if one of the import's files is missing or was changed.

    An older import has no digest for each file, only one for all files of `tokens`.
    """
    paths = [folder / name for name in names]
    for path in paths:
        _require_file(path)
    if "digests" not in meta:
        if _remembered(*(folder / name for name in tokens)) != meta["fingerprint"]:
            raise unusable(folder, "damaged: its token arrays are not those of the import")
        return
    for path in paths:
        if _remembered(path) != meta["digests"].get(path.name):
            raise unusable(path, "damaged: its digest is not that of the import")


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise unusable(path, "missing")


def unusable(path: Path, problem: str) -> UserError:
    """What to say of a file of an import that cannot be used."""
    folder = path if path.is_dir() else path.parent
    return UserError(f"{path}: {problem}. Remove the folder {folder}, and the run's next command imports it again.")


def _remembered(*paths: Path) -> str:
    """The files' digest. A mode opens its data more than once; files that have not changed are not read again."""
    files = [(path.resolve(), path.stat()) for path in paths]  # a sweep's cells share a folder through links
    return _digest_of_unchanged(tuple((path, found.st_mtime_ns, found.st_size) for path, found in files))


@functools.cache
def _digest_of_unchanged(files: tuple[tuple[Path, int, int], ...]) -> str:
    return digest_of(*(path for path, _, _ in files))
