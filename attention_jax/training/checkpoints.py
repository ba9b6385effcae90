"""Checkpoints: the last few states of a run, each whole or not there, each tried before it is trusted."""

import errno
import logging
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attention_jax.errors import UserError

UNREADABLE = ".unreadable"
SPARE = 1.1  # a checkpoint's own files beside its arrays


class Checkpoints:
    """Numbered states in a folder. `tell` gets a line when a checkpoint cannot be read."""

    def __init__(self, folder: Path, keep_last: int, tell: Callable[[str], None]):
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.ERROR)
        self._ocp, self._tell = ocp, tell
        self._unreadable: set[int] = set()
        self._folder = folder.absolute()
        options = ocp.CheckpointManagerOptions(max_to_keep=keep_last, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def save(self, step: int, state: Any) -> None:
        """Write the state of a step, once. Raises OSError, before anything is written, where the disk is full."""
        if step in self._unreadable:  # out of the way, but not lost
            (self._folder / str(step)).rename(self._folder / f"{step}{UNREADABLE}")
            self._unreadable.remove(step)
            self._manager.reload()
        if step in self._manager.all_steps():
            return
        state = jax.tree.map(np.asarray, state)
        self._require_space(sum(leaf.nbytes for leaf in jax.tree.leaves(state)))
        self._manager.save(step, args=self._ocp.args.StandardSave(state), force=True)

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """The last step that can be read and its state, shaped like `like`; None where there is none.

        Raises UserError where there are checkpoints and none can be read.
        """
        reason = ""
        for step in sorted(self._manager.all_steps(), reverse=True):
            if reason:
                self._tell(f"{reason}; using the one before it.")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return step, self._manager.restore(step, args=self._ocp.args.StandardRestore(like))
            except Exception as error:
                self._unreadable.add(step)
                reason = f"{self._folder / str(step)}: cannot be read ({_first_line(error)})"
        if reason:
            raise UserError(f"{reason}, nor any before it. Start over in another --workdir.")
        return None

    def _require_space(self, size: int) -> None:
        if shutil.disk_usage(self._folder).free < SPARE * size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))

    def last_step(self) -> int | None:
        """The step of the newest checkpoint."""
        return self._manager.latest_step()

    def close(self) -> None:
        self._manager.close()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]
