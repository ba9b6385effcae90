"""Sharing a sweep's work with other processes: what one of them has is waited for, and what it leaves is done."""

from pathlib import Path

from attention_jax.runs.folder import Busy, hold
from attention_jax.sweeps.folder import Sweep
from attention_jax.sweeps.working import Rungs, work
from attention_jax.training.progress import tell


def share_work(sweep: Sweep, rungs: Rungs | None = None) -> None:
    """Do what is missing; then wait for what other processes do, and go on where one of them ends before it is done.

    Raises Interrupted where asked to stop.
    """
    work(sweep, rungs)
    while (other := _held_by_another(sweep)) is not None:
        tell(f"{sweep.path}: another process works on what is left: waiting for it (Ctrl-C stops; it goes on)")
        with hold(other, wait=True):
            pass
        work(sweep, rungs)


def _held_by_another(sweep: Sweep) -> Path | None:
    """The folder of a wave that has cells to do, and that another process holds."""
    for program in sweep.plan.programs:
        for index, wave in enumerate(program.waves):
            home = sweep.path / "waves" / f"{program.name}-{index}"
            if all(map(sweep.has_ended, wave)):
                continue
            try:
                with hold(home):
                    pass
            except Busy:
                return home
    return None
