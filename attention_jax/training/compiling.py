"""Programs compiled in threads, side by side and ahead of their first call, so that a stop is heard meanwhile."""

import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
from jax.sharding import Mesh

from attention_jax import stopping

POLL = 0.1  # seconds
# Programs that are compiled at once: while Python traces one, XLA compiles others.
SIDE_BY_SIDE = max(2, len(os.sched_getaffinity(0)) // 2) if hasattr(os, "sched_getaffinity") else 2
Inspect = Callable[[Any], None]  # a compiled program
Precision = str | None  # of matrix products: JAX's name for it
_TRACING = threading.Lock()  # two threads that trace take longer than one after another
_THREADS = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="compiling")


def unseen(program: Any) -> None:
    """Nothing is asked of a program."""
    del program


class Programs:
    """A function's compiled programs, each with a key that its caller gives.

    Each is inspected before its first call. `seconds` is how long calls waited for programs.
    """

    def __init__(self, function: Callable, inspect: Inspect = unseen, **options: Any):
        self._function, self._inspect, self._options = function, inspect, options
        self._found: dict[Hashable, Future] = {}
        self.seconds = 0.0

    def __len__(self) -> int:
        return sum(found.done() and found.exception() is None for found in self._found.values())

    def prepare(self, key: Hashable, *arguments: Any, mesh: Mesh | None = None, **options: Any) -> None:
        """Have the program of this key compiled, after those that were asked for before.

        The arguments may be shapes. `options` are jit's.
        """
        if key not in self._found:
            self._found[key] = _THREADS.submit(self._compile, _precision(), mesh, arguments, options)

    def call(self, key: Hashable, *arguments: Any, mesh: Mesh | None = None, **options: Any) -> Any:
        """The function of the arguments, by the program of this key, which is compiled where it is not yet.

        Raises Interrupted where a stop is asked for meanwhile, and what the program's inspection raises.
        """
        self.prepare(key, *arguments, mesh=mesh, **options)
        if not self._found[key].done():
            started = time.perf_counter()
            _wait(self._found[key])
            self.seconds += time.perf_counter() - started
        return self._found[key].result()(*arguments)

    def forget(self) -> None:
        """Compile nothing more of what was asked for, but what is called."""
        self._found = {key: found for key, found in self._found.items() if not found.cancel()}

    def _compile(self, precision: Precision, mesh: Mesh | None, arguments: tuple, options: dict[str, Any]) -> Any:
        with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
            program = _made(precision, jax.jit(self._function, **self._options, **options), *arguments)
        self._inspect(program)
        return program


class Rehearsals:
    """Functions of `jax.jit` compiled ahead of their first calls, which then find their programs in JAX's memory."""

    def __init__(self) -> None:
        self._asked: list[Future] = []

    def add(self, function: Any, *arguments: Any) -> None:
        """Have the program for these arguments, which may be shapes, compiled after those asked for before."""
        self._asked.append(_THREADS.submit(_made, _precision(), function, *arguments))

    def wait(self) -> None:
        """Wait until all are there. Raises Interrupted where a stop is asked for, and what a compilation raises."""
        for found in self._asked:
            _wait(found)
            found.result()
        self._asked.clear()

    def forget(self) -> None:
        """Compile nothing more of what was asked for."""
        for found in self._asked:
            found.cancel()
        self._asked.clear()


def compiled(lowered: Any) -> Any:
    """The compiled program. Raises Interrupted where a stop is asked for meanwhile."""
    found = _THREADS.submit(lowered.compile)
    _wait(found)
    return found.result()


def _precision() -> Precision:
    """That of this thread's matrix products, which another thread does not know."""
    return jax.config.jax_default_matmul_precision


def _made(precision: Precision, function: Any, *arguments: Any) -> Any:
    with _TRACING, jax.default_matmul_precision(precision):
        lowered = function.lower(*arguments)
    return lowered.compile()


def _wait(found: Future) -> None:
    while not found.done():
        concurrent.futures.wait([found], POLL)
        stopping.poll_alone()
