"""Programs compiled ahead of their first call, in a thread of their own, so that a stop is heard meanwhile."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax

from attention_jax import stopping

POLL = 0.1  # seconds
Inspect = Callable[[Any], None]  # a compiled program


def unseen(program: Any) -> None:
    """Nothing is asked of a program."""
    del program


class Programs:
    """A function's compiled programs, each with a key that its caller gives; `seconds` is what compiling them took.

    Each is inspected before its first call.
    """

    def __init__(self, function: Callable, inspect: Inspect = unseen, **options: Any):
        self._function, self._inspect, self._options = function, inspect, options
        self._compiled: dict[Hashable, Any] = {}
        self.seconds = 0.0

    def __len__(self) -> int:
        return len(self._compiled)

    def call(self, key: Hashable, *arguments: Any, **options: Any) -> Any:
        """The function of the arguments, by the program of this key; `options` of jit are read when it is compiled.

        Raises Interrupted where a stop is asked for while the program is compiled, and what its inspection raises.
        """
        if key not in self._compiled:
            started = time.perf_counter()
            lowered = jax.jit(self._function, **self._options, **options).lower(*arguments)
            program = compiled(lowered)
            self._inspect(program)
            self._compiled[key] = program
            self.seconds += time.perf_counter() - started
        return self._compiled[key](*arguments)


def compiled(lowered: Any) -> Any:
    """The compiled program. Raises Interrupted where a stop is asked for meanwhile."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def compile_it():
        try:
            found.append(lowered.compile())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=compile_it, name="compiling", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL)
        stopping.poll_alone()
    if failed:
        raise failed[0]
    return found[0]
