"""Checkpoints: the last few states of a run, each whole or not there, each tried before it is trusted."""

import errno
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attention_jax.errors import UserError

UNREADABLE = ".unreadable"
SPARE = 2**20  # bytes for a checkpoint's own files and for those of the run beside it


class Checkpoints:
    """Numbered states in a folder: the last `keep_last` of the steps that are due, and the newest whichever it is.

    `tell` gets a line when a checkpoint cannot be read. `vocabulary` tells the one that the states were trained with
    from others; the folder keeps that of its first checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        keep_last: int,
        tell: Callable[[str], None],
        *,
        is_due: Callable[[int], bool] = lambda step: True,
        vocabulary: str = "",
        read_only: bool = False,
    ):
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.CRITICAL)  # what it would say is raised, and told here
        self._ocp, self._tell, self._keep_last, self._is_due = ocp, tell, keep_last, is_due
        self._unreadable: list[int] = []
        self._folder = folder.absolute()
        options = ocp.CheckpointManagerOptions(
            enable_async_checkpointing=False, create=not read_only, read_only=read_only
        )
        if not read_only and not any(self._folder.glob("[0-9]*")):  # a kill may have cut it short
            shutil.rmtree(self._folder / "metadata", ignore_errors=True)
        self._manager = ocp.CheckpointManager(self._folder, options=options, metadata={"vocabulary": vocabulary})
        self.vocabulary = self._manager.metadata().custom_metadata.get("vocabulary", vocabulary)

    def save(self, step: int, state: Any) -> None:
        """Write the state of a step, once. Raises OSError, before anything is written, where the disk is full."""
        self._set_aside()
        if step in self._manager.all_steps():
            return
        state = jax.tree.map(np.asarray, state)
        self._require_space(sum(leaf.nbytes for leaf in jax.tree.leaves(state)))
        self._manager.save(step, args=self._ocp.args.StandardSave(state), force=True)
        for old in set(self._manager.all_steps()) - {step, *self._due_steps()[-self._keep_last :]}:
            self._manager.delete(old)

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """The last step that can be read and its state, shaped like `like`; None where there is none."""
        return next(self.restore_each(like), None)

    def restore_due(self, like: Any) -> Iterator[Any]:
        """The state of every step that is due and can be read, shaped like `like`, the newest first."""
        return (state for step, state in self.restore_each(like) if self._is_due(step))

    def restore_each(self, like: Any) -> Iterator[tuple[int, Any]]:
        """Every step that can be read and its state, shaped like `like`, the newest first.

        Raises UserError where there are checkpoints and none can be read.
        """
        reason, is_any = "", False
        for step in sorted(self._manager.all_steps(), reverse=True):
            if reason:
                self._tell(f"{reason}; using the one before it.")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    state = self._manager.restore(step, args=self._ocp.args.StandardRestore(like))
            except Exception as error:
                self._unreadable.append(step)
                reason = f"{self._folder / str(step)}: cannot be read ({_first_line(error)})"
            else:
                reason, is_any = "", True
                yield step, state
        if reason and not is_any:
            raise UserError(f"{reason}, nor any before it. Start over in another --workdir.")

    def _due_steps(self) -> list[int]:
        return sorted(filter(self._is_due, self._manager.all_steps()))

    def _set_aside(self) -> None:
        """What could not be read makes room for what will be written, but is not lost."""
        for step in self._unreadable:
            (self._folder / str(step)).rename(self._folder / f"{step}{UNREADABLE}")
        if self._unreadable:
            self._unreadable.clear()
            self._manager.reload()

    def _require_space(self, size: int) -> None:
        if shutil.disk_usage(self._folder).free < 1.1 * size + SPARE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))

    def last_step(self) -> int | None:
        """The step of the newest checkpoint."""
        return self._manager.latest_step()

    def close(self) -> None:
        self._manager.close()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]
