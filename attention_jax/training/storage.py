"""Trees of arrays on the disk, through orbax: each in a folder, whole or not there, verified before it is read.

FOLDER/default/     the arrays, as orbax writes them: every host its own shards, in the background
FOLDER/about.json   the digest of each of their files, and what is kept beside; its own digest

A folder is written aside, as partial-NAME, and renamed; one that is removed is removed-NAME first. A kill may leave
either. An object store renames nothing: there a tree is whole once it has its about.json, which comes last and goes
first.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from attention_jax import hosts, stores

ARRAYS, ABOUT = "default", "about.json"
LEFT_BY_A_KILL = ("partial-[0-9]*", "removed-[0-9]*", "[0-9]*.orbax-checkpoint-tmp*")
DAMAGE = (FileNotFoundError, ValueError)  # what reading a file raises that is not what was written
SPARE = 2**20  # bytes for a tree's own files and for those of the run beside it


class Storage:
    """Writes trees one after another, each while its caller goes on; what fails is raised at the next call."""

    def __init__(self) -> None:
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.CRITICAL)  # its errors are raised, and told here
        self._ocp, self._arrays = ocp, ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
        self._writing: threading.Thread | None = None
        self._failed: list[BaseException] = []

    def write(self, folder: Path, tree: Any, beside: Any, then: Callable[[], None] = lambda: None) -> None:
        """Write a tree, and JSON beside it, in place of what the folder has; `then` is called when it is whole.

        Raises OSError, before anything is written, where the disk is full.
        """
        self.wait()
        aside = folder if stores.is_there(folder) else folder.with_name(f"partial-{folder.name}")
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
        if hosts.is_first():
            folder.parent.mkdir(parents=True, exist_ok=True)
            _require_space(folder.parent, size + len(json.dumps(beside)))
            delete(aside)
            aside.mkdir(exist_ok=True)
        hosts.agreed(None)
        try:
            self._arrays.save(aside / ARRAYS, args=self._ocp.args.StandardSave(_own(tree)))
        except BaseException:
            delete(aside)
            raise
        self._writing = threading.Thread(target=self._finish, args=(folder, aside, beside, then), name="saving")
        self._writing.start()

    def read(self, folder: Path, like: Any) -> Any:
        """A tree with the shapes and shardings of `like`. Raises ValueError where a file is not what was written."""
        about = hosts.agreed(_verified(folder) if hosts.is_first() else None)
        if isinstance(about, str):
            raise ValueError(about)
        with _answered(folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._arrays.restore(folder / ARRAYS, args=self._ocp.args.StandardRestore(like))

    def wait(self) -> None:
        """Wait until all is written, on every host. Raises what failed."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
            hosts.agreed(None)
        if self._failed:
            raise self._failed.pop()

    def close(self) -> None:
        """Wait, and let go of orbax's threads. Raises what failed."""
        if self._writing is not None:
            self._writing.join()
        self._arrays.close()
        if self._failed:
            raise self._failed.pop()

    def _finish(self, folder: Path, aside: Path, beside: Any, then: Callable[[], None]) -> None:
        is_whole = False
        try:
            with _answered(folder):
                self._arrays.wait_until_finished()
                if hosts.is_first():
                    stores.settle(folder)  # what a tree needs beside it, as its run's config
                    _seal(aside, beside)
                    if aside != folder:
                        _rename(aside, folder)
                    is_whole = True
                    then()
        except BaseException as error:
            self._failed.append(error)
            if not is_whole:
                delete(aside)


def _rename(aside: Path, folder: Path) -> None:
    """Put a tree in place of the one that is there."""
    with contextlib.suppress(FileNotFoundError):
        remove(folder)
    aside.rename(folder)
    _flush(folder.parent)


def _own(tree: Any) -> Any:
    """Arrays that nobody else has: on a CPU orbax reads the very memory that the next training step writes into."""
    return jax.tree.map(jnp.copy, tree) if jax.default_backend() == "cpu" else tree


def read_beside(folder: Path) -> Any:
    """What was kept beside a tree. Raises ValueError where it is not what was written."""
    return _about(folder)["beside"]


def steps_in(folder: Path) -> list[int]:
    """The numbers that a folder's trees are named by, readable or not, in their order."""
    return sorted(int(path.name) for path in _numbered(stores.there(folder)) if _is_whole(path))


def remove_leftovers(folder: Path) -> None:
    """Remove what a kill has left in a folder of trees."""
    unfinished = [path for path in _numbered(folder) if not _is_whole(path)]
    for left in (*unfinished, *(path for pattern in LEFT_BY_A_KILL for path in folder.glob(pattern))):
        delete(left)


def _numbered(folder: Path) -> list[Path]:
    """What is named by a number in a folder."""
    found = folder.glob("[0-9]*")
    return [path for path in found if path.name.isdecimal() and str(int(path.name)) == path.name]


def _is_whole(tree: Path) -> bool:
    """Whether a tree is not one that is being written, or that a kill has left, in a store."""
    return not stores.is_there(tree) or (tree / ABOUT).exists()


def delete(path: Path) -> None:
    """Remove a file or folder, where it is."""
    if stores.is_there(path):
        (path / ABOUT).unlink(missing_ok=True)
        for file in stores.files(path):
            file.unlink(missing_ok=True)
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove a tree, or a folder of trees, so that a kill leaves nothing of it under its name."""
    delete(folder if stores.is_there(folder) else folder.rename(folder.with_name(f"removed-{folder.name}")))


def _seal(aside: Path, beside: Any) -> None:
    """Write the digests of a tree's files, and have all of it on the disk itself."""
    about = {"beside": beside, "digests": _digests(aside / ARRAYS)}
    sealed = json.dumps({"digest": _digest_of_json(about), "about": about}, allow_nan=False)
    (aside / ABOUT).write_text(sealed, encoding="utf-8")
    for path in () if stores.is_there(aside) else (*aside.rglob("*"), aside):
        _flush(path)


def _verified(folder: Path) -> dict[str, Any] | str:
    """What is known of a tree, once all its files are verified; else why it cannot be read."""
    try:
        about = _about(folder)
        with _answered(folder, DAMAGE):
            _require_same(folder / ARRAYS, about["digests"])
    except (OSError, ValueError) as error:
        return first_line(error)
    return about


@contextlib.contextmanager
def _answered(folder: Path, damage: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise NoAnswer for an error of a store, but for one that tells of `damage`."""
    with stores.told(f"{folder}: no answer") if stores.is_there(folder) else contextlib.nullcontext():
        try:
            yield
        except damage as error:
            found: Exception | None = error
        else:
            found = None
    if found is not None:
        raise found


def _about(folder: Path) -> dict[str, Any]:
    with _answered(folder, DAMAGE):
        content = (folder / ABOUT).read_bytes()
    try:
        found = json.loads(content)
        about, digest = found["about"], found["digest"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{ABOUT} is damaged") from None
    if digest != _digest_of_json(about):
        raise ValueError(f"{ABOUT}: its digest is not what was saved")
    return about


def _digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in a folder."""
    return {path.relative_to(folder).as_posix(): _digest(path) for path in stores.files(folder)}


def _require_same(folder: Path, digests: Mapping[str, str]) -> None:
    """Raise ValueError where a file is not the one that was saved."""
    for name, digest in digests.items():
        if _digest(folder / name) != digest:
            raise ValueError(f"{folder.name}/{name}: its digest is not what was saved")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _require_space(folder: Path, size: int) -> None:
    if not stores.is_there(folder) and shutil.disk_usage(folder).free < 1.1 * size + SPARE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _flush(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def first_line(error: Exception) -> str:
    """An error's message in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
