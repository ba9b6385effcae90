"""The processes of one run, a host each: how they meet, who writes, how all come to know the same, and who is missing.

They meet through JAX's own distributed runtime, whose store of keys they also agree through. Alone, a process is the
first and agrees with itself. `agreed`, `any_says`, `require_same`, `by_first` and `in_turn` are calls that all hosts
make in the same order.
"""

import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import jax

from attention_jax.errors import UserError
from attention_jax.terminal import printable

T = TypeVar("T")
OFF, AUTO = "off", "auto"
HEARTBEAT = 30  # seconds, after which JAX gives a host up
SILENT = 25.0  # seconds, after which a host that says nothing is given up here
BEAT, POLL = 2.0, 0.005  # seconds between signs of life, and between looks at a key

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
            found = {"gives": do()}
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
    return made[0] if made else do()


def explained(error: BaseException) -> NoReturn:
    """Raise an error of this host; where a host that is gone may be its reason, wait until the watch has named it."""
    if not is_alone() and not isinstance(error, (UserError, SystemExit)):
        time.sleep(SILENT + 3 * BEAT)  # the watch ends the process
    raise error


def leave(message: str) -> None:
    """Tell the other hosts that this one ends by an error, so that they do not wait for it."""
    if not is_alone():
        _client().key_value_set(f"failed/{_index()}", message, allow_overwrite=True)
        time.sleep(2 * BEAT)  # they read it: the first host's end is the end of the store


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
                explained(error)
        time.sleep(POLL)


class _Watch:
    """Says that this host lives, and ends the process where another has not said so for `SILENT` seconds, or failed.

    JAX's heartbeats see a host whose process is gone; they name none, and a process that is stopped may go unnoticed.
    """

    def __init__(self) -> None:
        now = time.monotonic()
        self._seen = {host: ("", now) for host in range(_count()) if host != _index()}

    def start(self) -> None:
        threading.Thread(target=self._run, name="watching hosts", daemon=True).start()

    def _run(self) -> None:
        own = f"{socket.gethostname()}, process {os.getpid()}"
        for beat in itertools.count():
            try:
                _client().key_value_set(f"alive/{_index()}", f"{beat}|{own}", allow_overwrite=True)
                self._look()
            except Exception:
                self._silent(0)
            time.sleep(BEAT)

    def _look(self) -> None:
        now = time.monotonic()
        for host, (before, since) in self._seen.items():
            beat = _found(f"alive/{host}")
            failed = _found(f"failed/{host}")
            if failed:
                self._end(f"host {host} ({_named(beat)}) failed: {failed}")
            if beat != before:
                self._seen[host] = beat, now
            elif now - since > SILENT:
                self._end(f"host {host} ({_named(beat)}) has said nothing for {now - since:.0f} s: killed or stopped.")

    def _silent(self, host: int) -> None:
        """The store of keys, which is the first host's, cannot be reached."""
        before, since = self._seen.get(host, ("", time.monotonic()))
        if time.monotonic() - since > SILENT - 5 * BEAT:
            self._end(f"host {host} ({_named(before)}), which the others meet at, is gone or stopped.")

    def _end(self, message: str) -> None:
        again = "Start the same command on every host again; it goes on from the last checkpoint."
        print(printable(f"error: {message} {again}"), file=sys.stderr, flush=True)
        os._exit(1)


def _named(beat: str) -> str:
    return beat.partition("|")[2] or "never heard of"


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
