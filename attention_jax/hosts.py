"""The processes of one run, a host each: how they meet, who writes, how all come to know the same, and who is missing.

They meet through JAX's own distributed runtime, whose store of keys they also agree through. Alone, a process is the
first and agrees with itself. `agreed`, `any_says`, `require_same`, `by_first` and `in_turn` are calls that all hosts
make in the same order.
"""

import contextlib
import ctypes
import faulthandler
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from attention_jax.errors import UserError
from attention_jax.terminal import printable

T = TypeVar("T")
OFF, AUTO = "off", "auto"
HEARTBEAT = 30  # seconds, after which JAX gives a host up
SILENT = 15.0  # seconds, after which a host that says nothing is given up here
BEAT, POLL = 1.0, 0.005  # seconds between signs of life, and between looks at a key
WORKS = "works"

_calls = itertools.count()


def is_alone() -> bool:
    """Whether there is no other host."""
    return not jax.distributed.is_initialized() or _count() == 1


def is_first() -> bool:
    """Whether this is the host that logs and writes."""
    return is_alone() or _index() == 0


def join(distributed: str, process_id: int | None = None, num_processes: int | None = None) -> None:
    """Meet the others of `config.distributed`: "off", "auto" (SLURM, TPU, GKE, Open MPI), or the first's HOST:PORT.

    From then on a host that is missing ends the others. Raises UserError where they do not meet.
    """
    numbers = "--process_id=0 --num_processes=2"
    if distributed == OFF:
        if process_id is not None or num_processes is not None:
            raise UserError(f"{numbers}: are for --config.distributed=HOST:PORT, and config.distributed is {OFF!r}.")
        return
    if distributed == AUTO:
        where: dict[str, Any] = {}
    elif process_id is None or num_processes is None:
        raise UserError(f"config.distributed={distributed!r}: say which process this is, and of how many: {numbers}.")
    elif ":" not in distributed:
        raise UserError(f"config.distributed={distributed!r}: needs {OFF}, {AUTO}, or HOST:PORT of process 0.")
    else:
        where = {"coordinator_address": distributed, "num_processes": num_processes, "process_id": process_id}
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM, which `stopping` hears
    try:
        jax.distributed.initialize(**where, heartbeat_timeout_seconds=HEARTBEAT)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"config.distributed={distributed!r}: {str(error).strip().splitlines()[0]}") from None
    if not is_alone():
        _Watch().start()


def agreed(value: Any) -> Any:
    """What the first host says, as JSON has it; the others' value is not looked at."""
    if is_alone():
        return value
    number = next(_calls)
    if is_first():
        _client().key_value_set(f"agreed/{number}", json.dumps(value))
        return json.loads(json.dumps(value))
    return json.loads(_wait_for(f"agreed/{number}"))


def any_says(value: bool) -> bool:
    """Whether any host says so."""
    return value if is_alone() else any(_gathered(value))


def require_same(what: str, digest: str) -> None:
    """Raise UserError where a digest is not the same on all hosts, and name those that differ from the first."""
    if is_alone():
        return
    first, *others = _gathered(digest)
    differ = [index for index, found in enumerate(others, start=1) if found != first]
    if differ:
        raise UserError(f"hosts {differ}: {what} differ from host 0's. Give all hosts the same data and code.")


def by_first(do: Callable[[], T]) -> T:
    """What `do()` gives on the first host, as JSON has it, on all; a UserError of it is raised on all."""
    if is_alone():
        return do()
    found: Any = None
    if is_first():
        try:
            found = {"gives": _working(do)}
        except UserError as error:
            found = {"refuses": str(error)}
    found = agreed(found)
    if "refuses" in found:
        raise UserError(found["refuses"])
    return found["gives"]


def in_turn(do: Callable[[], T]) -> T:
    """What `do()` gives: on the first host, and then on the others, who find what it has made on the disk."""
    if is_alone():
        return do()
    made: list[T] = []
    by_first(lambda: made.append(do()))
    return made[0] if made else _working(do)


def _working(do: Callable[[], T]) -> T:
    """What `do()` gives, whose work may keep this host from saying that it lives."""
    _Busy.what = WORKS
    try:
        return do()
    finally:
        _Busy.what = ""


def explained(error: BaseException) -> None:
    """What a host does with an error that is not the user's: one that is gone may be its reason, and is named first.

    Ends the process, and the other hosts', with status 1; alone it does nothing.
    """
    if is_alone():
        return
    time.sleep(SILENT + 5 * BEAT)  # the watch ends the process where another is gone
    traceback.print_exception(error)
    leave(f"{type(error).__name__}: {error}".splitlines()[0])
    os._exit(1)


def leave(message: str) -> None:
    """Tell the other hosts that this one ends by an error, so that they do not wait for it; the first waits until they
    have read it, for its end is the end of the store.
    """
    if is_alone():
        return
    _client().key_value_set(f"failed/{_index()}", message, allow_overwrite=True)
    late = time.monotonic() + SILENT
    others = set(range(1, _count())) if is_first() else set()
    while others and time.monotonic() < late:
        time.sleep(POLL)
        others = {host for host in others if not (_found(f"read/{host}") or _found(f"failed/{host}"))}


def _gathered(value: Any) -> list[Any]:
    """Every host's value, by its number."""
    number = next(_calls)
    _client().key_value_set(f"said/{number}/{_index()}", json.dumps(value))
    return [json.loads(_wait_for(f"said/{number}/{host}")) for host in range(_count())]


def _wait_for(key: str) -> str:
    """The value of a key, once it is there."""
    while True:
        try:
            return _client().key_value_try_get(key)
        except Exception as error:
            if "NOT_FOUND" not in str(error):
                raise
        time.sleep(POLL)


class _Watch:
    """Says that this host lives, and ends the process where another has not said so for `SILENT` seconds, or failed.

    JAX's heartbeats end a process too, later and without naming a host.
    """

    def __init__(self) -> None:
        now = time.monotonic()
        self._seen = dict.fromkeys(range(_count()), ("", now))
        self._answered = now  # when the store of keys, which is the first host's, last did

    def start(self) -> None:
        for work in (self._speak, self._listen):
            threading.Thread(target=work, name="watching hosts", daemon=True).start()
        if not is_first():
            self._aborting = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._abort)
            ctypes.CDLL(None).signal(signal.SIGABRT, self._aborting)

    def _abort(self, number: int) -> None:
        """What JAX's client does as soon as host 0's store does not answer; it names nobody, so we do."""
        host, _, port = _state().coordinator_address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=BEAT).close()
        except OSError:
            _end(f"host 0 ({_named(self._seen[0][0])}) is gone: killed, or out of reach.")
        faulthandler.dump_traceback()

    def _speak(self) -> None:
        """Ask the store, which may never answer."""
        own = f"{socket.gethostname()}, process {os.getpid()}"
        for beat in itertools.count():
            with contextlib.suppress(Exception):  # silence speaks for itself
                _client().key_value_set(f"alive/{_index()}", f"{beat}|{own}|{_Busy.what}", allow_overwrite=True)
                for host, (before, _) in self._seen.items():
                    if host != _index() and (failed := _found(f"failed/{host}")):
                        _client().key_value_set(f"read/{_index()}", "yes", allow_overwrite=True)
                        _end(f"host {host} ({_named(before)}) failed: {failed}")
                    if (found := _found(f"alive/{host}")) != before:
                        self._seen[host] = found, time.monotonic()
                self._answered = time.monotonic()
            time.sleep(BEAT)

    def _listen(self) -> None:
        while True:
            time.sleep(BEAT)
            now = time.monotonic()
            if now - self._answered > SILENT:
                _end(f"host 0 ({_named(self._seen[0][0])}) has not answered for {SILENT:.0f} s: killed or stopped.")
            for host, (found, since) in self._seen.items():
                if now - since > SILENT and host != _index() and not found.endswith(f"|{WORKS}"):
                    _end(f"host {host} ({_named(found)}) has said nothing for {SILENT:.0f} s: killed or stopped.")


class _Busy:
    """What this host does that may keep its threads from running: a library's long work."""

    what = ""


def _end(message: str) -> None:
    again = "Start the same command on every host again; it goes on from the last checkpoint."
    print(printable(f"error: {message} {again}"), file=sys.stderr, flush=True)
    os._exit(1)


def _named(beat: str) -> str:
    return beat.split("|")[1] if beat else "never heard of"


def _found(key: str) -> str:
    try:
        return _client().key_value_try_get(key)
    except Exception as error:
        if "NOT_FOUND" in str(error):
            return ""
        raise


def _client() -> Any:
    from jax._src import distributed  # JAX has no public name for its store of keys

    return distributed.global_state.client


def _count() -> int:
    return _state().num_processes


def _index() -> int:
    return _state().process_id


def _state() -> Any:
    from jax._src import distributed

    return distributed.global_state
