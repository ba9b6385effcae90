"""Being asked to stop: what is heard of signals, wherever the process is, and how it ends.

SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGUSR2, which SLURM is told to send before a job is preempted or out of time, ask
a run to stop at the next safe moment; a second Ctrl-C stops at once. Whoever works for long calls `poll`. What does not
come to one within `GRACE` seconds, such as a library's training of a tokenizer, is ended where it is: everything on the
disk is whole at every moment.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, TypeVar

from attention_jax import hosts

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
GRACE = 15.0  # seconds


class Interrupted(BaseException):
    """The run was asked to stop, has saved, and can go on; no error, so that what handles errors lets it pass."""


class _Asked:
    """The first signal that asked this process to stop, 0 before any; whether anyone has noticed; and each Ctrl-C.

    `is_heard_at_once` while the process only waits.
    """

    number = 0
    is_noticed = False
    is_heard_at_once = False
    interrupts = 0


def asked() -> bool:
    """Whether this process, or another host's, was asked to stop; a call that all hosts make in the same order."""
    if hosts.any_says(bool(_Asked.number)):
        _Asked.is_noticed = True
    return _Asked.is_noticed


def poll() -> None:
    """Raise Interrupted where a stop was asked for; a call that all hosts make in the same order."""
    if asked():
        raise Interrupted("stopped. The same command goes on from there.")


def poll_alone() -> None:
    """`poll` where each host works by itself: one host among several goes on to the next common call."""
    if _Asked.number and hosts.is_alone():
        poll()


def polled(items: Iterable[T]) -> Iterator[T]:
    """The same items, with `poll_alone` before each."""
    for item in items:
        poll_alone()
        yield item


def waited_for(do: Callable[[], T]) -> T:
    """What `do()` gives, which may wait for long, as for a line that is typed; Interrupted where asked to stop."""
    poll_alone()
    _Asked.is_heard_at_once = True
    try:
        return do()
    finally:
        _Asked.is_heard_at_once = False


def end() -> NoReturn:
    """End the process, whatever its threads compile, with 130 after Ctrl-C and 143 (128 + SIGTERM) after the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(128 + (signal.SIGINT if _Asked.number == signal.SIGINT else signal.SIGTERM))


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Hear the signals, but those that the process was started to ignore (nohup), until it ends."""
    _Asked.number, _Asked.is_noticed, _Asked.interrupts = 0, False, 0
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _hear) for number in heard}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # at once, also while a library computes
    thread = threading.Thread(target=_watch, args=(reading,), name="stopping", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        os.close(writing)  # ends the thread
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _hear(number: int, frame: object) -> None:
    del frame
    _Asked.number = _Asked.number or number
    _Asked.interrupts += number == signal.SIGINT
    if _Asked.interrupts > 1:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if _Asked.is_heard_at_once:
        poll_alone()


def _watch(reading: int) -> None:
    """End the process where a stop is not noticed in time."""
    with open(reading, "rb", buffering=0) as pipe:
        while written := pipe.read(1):
            number = written[0]
            if number not in SIGNALS:
                continue
            _Asked.number = _Asked.number or number
            timer = threading.Timer(GRACE, _end)
            timer.daemon = True
            timer.start()


def _end() -> None:
    if not _Asked.is_noticed:
        print("\nstopped; the same command goes on from what is saved.", file=sys.stderr)
        end()
