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
        self._folder = folder.absolute()
        options = ocp.CheckpointManagerOptions(max_to_keep=keep_last, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def save(self, step: int, state: Any) -> None:
        """Write the state of a step, once. Raises OSError, before anything is written, where the disk is full."""
        if step in self._manager.all_steps():
            return
        state = jax.tree.map(np.asarray, state)
        self._require_space(sum(leaf.nbytes for leaf in jax.tree.leaves(state)))
        self._manager.save(step, args=self._ocp.args.StandardSave(state), force=True)

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """The last step that can be read and its state, shaped like `like`; None where there is none.

        A checkpoint that cannot be read is set aside; UserError is raised where that leaves none.
        """
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    state = self._manager.restore(step, args=self._ocp.args.StandardRestore(like))
                return step, state
            except Exception as error:
                reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
                self._set_aside(step)
                self._tell(f"{self._folder / str(step)}: cannot be read ({reason}); using the one before it.")
        if any(self._folder.glob("*" + UNREADABLE)):
            raise UserError(f"{self._folder}: none of the checkpoints can be read. Start over in another --workdir.")
        return None

    def _require_space(self, size: int) -> None:
        if shutil.disk_usage(self._folder).free < SPARE * size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))

    def _set_aside(self, step: int) -> None:
        """Out of the way of the checkpoint that a resumed run writes at the same step, but not lost."""
        (self._folder / str(step)).rename(self._folder / f"{step}{UNREADABLE}")
        self._manager.reload()

    def last_step(self) -> int | None:
        """The step of the newest checkpoint."""
        return self._manager.latest_step()

    def close(self) -> None:
        self._manager.close()
