"""Ctrl-C, SIGTERM and SIGUSR2 ask a run to stop at the next safe moment; a second Ctrl-C stops at once.

SIGUSR2 is what SLURM is told to send before a job is preempted or out of time.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator


class Interrupted(Exception):
    """The run was asked to stop, has saved, and can go on."""


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within it, the yielded function tells whether a stop was asked for."""
    asked = []

    def ask(number, frame):
        del frame
        asked.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    heard = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heard}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
