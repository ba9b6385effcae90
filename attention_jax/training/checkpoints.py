"""Checkpoints: the last few states of a run, each whole or not there, each verified before it is trusted.

FOLDER/STEP/default/     the arrays, as orbax writes them
FOLDER/STEP/about.json   the digest of each of their files, the vocabulary, what the run keeps beside; its own digest
FOLDER/STEP.unreadable   what could not be read, set aside
FOLDER/partial-STEP      a checkpoint being written, and removed-STEP one being removed; a kill may leave either
FOLDER/metadata/         the vocabulary of all steps, in folders of a version that kept no about.json
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from attention_jax.errors import UserError

ARRAYS, ABOUT = "default", "about.json"
UNREADABLE = ".unreadable"
LEFT_BY_A_KILL = ("partial-[0-9]*", "removed-[0-9]*", "[0-9]*.orbax-checkpoint-tmp*")
SPARE = 2**20  # bytes for a checkpoint's own files and for those of the run beside it


class Saved(NamedTuple):
    """A checkpoint that was read."""

    step: int
    state: Any
    beside: Any  # what the run kept beside the state; None where the version that wrote it kept nothing


class Checkpoints:
    """Numbered states in a folder: the last `keep_last` of the steps that are due, and the newest in any case.

    `tell` gets a line when a checkpoint cannot be read. `vocabulary` identifies the vocabulary that the states are
    trained with; a folder keeps that of its first checkpoint. What `beside(step)` gives is kept beside the state, as
    JSON.
    """

    def __init__(
        self,
        folder: Path,
        keep_last: int,
        tell: Callable[[str], None],
        *,
        is_due: Callable[[int], bool] = lambda step: True,
        vocabulary: str = "",
        beside: Callable[[int], Any] = lambda step: None,
        read_only: bool = False,
    ):
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.CRITICAL)  # its errors are raised, and told here
        self._ocp, self._arrays = ocp, ocp.Checkpointer(ocp.StandardCheckpointHandler())
        self._tell, self._keep_last, self._is_due, self._beside = tell, keep_last, is_due, beside
        self._unreadable: set[int] = set()
        self._folder = folder.absolute()
        if not read_only:
            self._folder.mkdir(parents=True, exist_ok=True)
            for left in (path for pattern in LEFT_BY_A_KILL for path in self._folder.glob(pattern)):
                _delete(left)
        kept = self._kept_vocabulary()
        self.vocabulary = vocabulary if kept is None else kept

    def save(self, step: int, state: Any) -> None:
        """Write the state of a step, once. Raises OSError, before anything is written, where the disk is full."""
        self._set_aside()
        if step in self._steps():
            return
        state = jax.tree.map(np.asarray, state)
        about = {"vocabulary": self.vocabulary, "beside": self._beside(step)}
        self._require_space(sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + len(json.dumps(about)))
        self._write(step, state, about)
        for old in set(self._steps()) - {step, *list(filter(self._is_due, self._steps()))[-self._keep_last :]}:
            _delete((self._folder / str(old)).rename(self._folder / f"removed-{old}"))

    def restore(self, like: Any) -> Saved | None:
        """The last step that can be read, its state shaped like `like`; None where there is none."""
        return next(self.restore_each(like), None)

    def restore_due(self, like: Any) -> Iterator[Any]:
        """The state of every step that is due and can be read, shaped like `like`, the newest first."""
        return (saved.state for saved in self.restore_each(like) if self._is_due(saved.step))

    def restore_each(self, like: Any) -> Iterator[Saved]:
        """Every step that can be read, its state shaped like `like`, the newest first.

        Raises UserError where there are checkpoints and none can be read.
        """
        reason, is_any = "", False
        for step in reversed(self._steps()):
            if reason:
                self._tell(f"{reason}; using the one before it.")
            try:
                saved = self._read(step, like)
            except Exception as error:
                self._unreadable.add(step)
                reason = f"{self._folder / str(step)}: cannot be read ({_first_line(error)})"
            else:
                reason, is_any = "", True
                yield saved
        if reason and not is_any:
            raise UserError(f"{reason}, nor any before it. Start over in another --workdir.")
        if reason:
            self._tell(f"{reason}.")

    def last_step(self) -> int | None:
        """The step of the newest checkpoint that is not known to be unreadable."""
        return max(set(self._steps()) - self._unreadable, default=None)

    def require_vocabulary(self, vocabulary: str) -> None:
        """Raise UserError where the states were trained with another vocabulary."""
        if self.vocabulary != vocabulary:
            raise UserError(
                f"{self._folder}: trained with another vocabulary than the run's data has. Put its own data folder "
                "back, or start in another --workdir."
            )

    def close(self) -> None:
        self._arrays.close()

    def _steps(self) -> list[int]:
        return steps_in(self._folder)

    def _write(self, step: int, state: Any, about: dict[str, Any]) -> None:
        """Write aside, then rename: after a kill or a power cut the checkpoint is there whole or not at all."""
        aside = self._folder / f"partial-{step}"
        try:
            aside.mkdir()
            self._arrays.save(aside / ARRAYS, args=self._ocp.args.StandardSave(state))
            about = {**about, "digests": _digests(aside / ARRAYS)}
            sealed = json.dumps({"digest": _digest_of_json(about), "about": about}, allow_nan=False)
            (aside / ABOUT).write_text(sealed, encoding="utf-8")
            for path in (*aside.rglob("*"), aside):
                _flush(path)
            aside.rename(self._folder / str(step))
            _flush(self._folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def _read(self, step: int, like: Any) -> Saved:
        folder = self._folder / str(step)
        about = _read_about(folder)
        if about is not None:  # before orbax sees them: its threads print tracebacks of what is damaged
            _require_same(folder / ARRAYS, about["digests"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = self._arrays.restore(folder / ARRAYS, args=self._ocp.args.StandardRestore(like))
        return Saved(step, state, None if about is None else about["beside"])

    def _kept_vocabulary(self) -> str | None:
        """The vocabulary of the newest checkpoint that can be read; None where there is none."""
        for step in reversed(self._steps()):
            with contextlib.suppress(OSError, ValueError):
                about = _read_about(self._folder / str(step))
                return self._vocabulary_of_all() if about is None else about["vocabulary"]
        return None

    def _vocabulary_of_all(self) -> str | None:
        path = self._folder / "metadata" / "_ROOT_METADATA"
        try:
            return json.loads(path.read_bytes())["custom_metadata"]["vocabulary"]
        except (OSError, ValueError, KeyError, TypeError):
            self._tell(f"{path}: cannot be read; it is not known which vocabulary these checkpoints are of.")
            return None

    def _set_aside(self) -> None:
        """Rename what could not be read: its step can be written again, and nothing is lost."""
        for step in self._unreadable:
            path = self._folder / f"{step}{UNREADABLE}"
            number = 1
            while path.exists():
                number += 1
                path = self._folder / f"{step}{UNREADABLE}-{number}"
            (self._folder / str(step)).rename(path)
        self._unreadable.clear()

    def _require_space(self, size: int) -> None:
        if shutil.disk_usage(self._folder).free < 1.1 * size + SPARE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))


def steps_in(folder: Path) -> list[int]:
    """The steps that a folder of checkpoints has, readable or not, in their order."""
    names = [path.name for path in folder.glob("[0-9]*")]
    return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)


def _read_about(folder: Path) -> dict[str, Any] | None:
    """What is known of a checkpoint; None where it is of a version that kept nothing beside the arrays."""
    path = folder / ABOUT
    if not path.exists() and (folder / "_CHECKPOINT_METADATA").exists():  # which that version's orbax wrote here
        return None
    try:
        found = json.loads(path.read_bytes())
        about, digest = found["about"], found["digest"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{ABOUT} is damaged") from None
    if digest != _digest_of_json(about):
        raise ValueError(f"{ABOUT}: its digest is not what was saved")
    return about


def _digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in a folder."""
    return {str(path.relative_to(folder)): _digest(path) for path in folder.rglob("*") if path.is_file()}


def _require_same(folder: Path, digests: Mapping[str, str]) -> None:
    """Raise ValueError where a file is not the one that was saved."""
    for name, digest in digests.items():
        if _digest(folder / name) != digest:
            raise ValueError(f"{folder.name}/{name}: its digest is not what was saved")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _flush(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
