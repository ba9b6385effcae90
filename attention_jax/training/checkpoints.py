"""Checkpoints: the last few states of a run, and each member's best variables, kept as long as a state needs them.

FOLDER/STEP/             a state, as training/storage.py writes it
FOLDER/STEP.unreadable   what could not be read, set aside
BEST/STEP/               variables of the best evaluation so far, of one member
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attention_jax import hosts
from attention_jax.errors import NoAnswer, UserError
from attention_jax.stores import there
from attention_jax.training.placement import whole
from attention_jax.training.state import TrainState, Variables
from attention_jax.training.storage import (
    Storage,
    first_line,
    read_beside,
    remove,
    remove_leftovers,
    steps_in,
)

UNREADABLE = ".unreadable"


class Saved(NamedTuple):
    """A checkpoint that was read."""

    step: int
    state: list[TrainState]
    beside: Any  # what the run kept beside the state


class Checkpoints:
    """Numbered states in a folder: the last `keep_last` of the steps that are due, and the newest in any case.

    `tell` gets a line when a checkpoint cannot be read. `vocabulary` identifies the vocabulary that the states are
    trained with; a folder keeps that of its first checkpoint. What `beside(step)` gives is kept beside the state, as
    JSON. `best` are the folders of the members' best variables.
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
        best: Sequence[Path] = (),
        read_only: bool = False,
    ):
        self._storage, self._folder = Storage(), there(folder.absolute())
        self._best = [there(path.absolute()) for path in best]
        self._tell, self._keep_last, self._is_due, self._beside = tell, keep_last, is_due, beside
        self._unreadable: set[int] = set()
        if not read_only and hosts.is_first():
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in (self._folder, *self._best):
                remove_leftovers(path)
        kept = self._kept_vocabulary()
        self.vocabulary = vocabulary if kept is None else kept

    def save(self, step: int, states: list[TrainState], again: bool = False) -> None:
        """Write the states of a step, once, or `again` in their place; the caller goes on meanwhile.

        Raises OSError, before anything is written, where the disk is full.
        """
        self._storage.wait()
        if hosts.is_first():
            self._set_aside()
        if step in self._steps() and not again:
            return
        best = [int(whole(state.best.step)) for state in states] if self._best else []
        about = {"vocabulary": self.vocabulary, "best": best, "beside": self._beside(step)}
        self._storage.write(self._folder / str(step), states, about, self._forget)

    def keep_best(self, member: int, step: int, variables: Variables) -> None:
        """Write the best variables of a member; those of before stay while a checkpoint needs them."""
        self._storage.write(self._best[member] / str(step), variables, {"vocabulary": self.vocabulary})

    def restore(self, like: list[TrainState]) -> Saved | None:
        """The last step that can be read, its states shaped and laid out like `like`; None where there is none."""
        return next(self.restore_each(like), None)

    def restore_due(self, like: list[TrainState]) -> Iterator[list[TrainState]]:
        """The states of every step that is due and can be read, shaped like `like`, the newest first."""
        return (saved.state for saved in self.restore_each(like) if self._is_due(saved.step))

    def restore_each(self, like: list[TrainState]) -> Iterator[Saved]:
        """Every step that can be read, its states shaped like `like`, the newest first.

        Raises UserError where there are checkpoints and none can be read.
        """
        return self._each(lambda folder, beside: self._storage.read(folder, like))

    def best_steps(self) -> list[int]:
        """The step of each member's best variables, 0: none, as the newest readable checkpoint has it."""
        found: Any = next(self._each(lambda folder, beside: beside["best"])).state
        return found

    def restore_best(self, member: int, step: int, like: Variables) -> Variables:
        """A member's best variables. Raises UserError where they cannot be read."""
        folder = self._best[member] / str(step)
        try:
            return self._storage.read(folder, like)
        except Exception as error:
            raise UserError(
                f"{folder}: the best variables cannot be read ({first_line(error)}). Put them back, or train again in "
                "another --workdir."
            ) from None

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

    def wait(self) -> None:
        """Wait until all is written. Raises what failed."""
        self._storage.wait()

    def close(self) -> None:
        """Wait until all is written, and let go. Raises what failed."""
        self._storage.close()

    def _each(self, read: Callable[[Path, Any], Any]) -> Iterator[Saved]:
        """What `read(folder, beside)` gives of every step of which it gives anything, the newest first."""
        self._storage.wait()
        reason, is_any = "", False
        for step in reversed(self._steps()):
            if reason:
                self._tell(f"{reason}; using the one before it.")
            folder = self._folder / str(step)
            try:
                beside = _read_beside(folder)
                saved = Saved(step, read(folder, beside), beside["beside"])
            except NoAnswer:
                raise
            except Exception as error:
                self._unreadable.add(step)
                reason = f"{folder}: cannot be read ({first_line(error)})"
            else:
                reason, is_any = "", True
                yield saved
        if reason and not is_any:
            raise UserError(f"{reason}, nor any before it. Start over in another --workdir.")
        if reason:
            self._tell(f"{reason}.")

    def _steps(self) -> list[int]:
        return hosts.agreed(steps_in(self._folder) if hosts.is_first() else None)

    def _forget(self) -> None:
        """Remove the checkpoints that are not to be kept, and the best variables that no kept one needs."""
        steps = steps_in(self._folder)
        kept = {steps[-1], *list(filter(self._is_due, steps))[-self._keep_last :]}
        for old in set(steps) - kept:
            remove(self._folder / str(old))
        needed = [best_of(self._folder / str(step)) for step in kept]
        for member, folder in enumerate(self._best):
            for step in steps_in(folder):
                if step <= steps[-1] and all(best is not None and best[member] != step for best in needed):
                    remove(folder / str(step))

    def _kept_vocabulary(self) -> str | None:
        """The vocabulary of the newest checkpoint that can be read; None where there is none."""
        for step in reversed(self._steps()):
            with contextlib.suppress(OSError, ValueError):
                return _read_beside(self._folder / str(step))["vocabulary"]
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


def _read_beside(folder: Path) -> Any:
    """What lies beside a checkpoint, as the first host reads it. Raises ValueError where it is damaged."""
    found: Any = None
    if hosts.is_first():
        try:
            found = [read_beside(folder)]
        except (OSError, ValueError) as error:
            found = first_line(error)
    found = hosts.agreed(found)
    if isinstance(found, str):
        raise ValueError(found)
    return found[0]


def best_of(folder: Path) -> list[int] | None:
    """The steps of the best variables that a checkpoint needs; None where it cannot be read."""
    try:
        return read_beside(folder)["best"]
    except (OSError, ValueError):
        return None
