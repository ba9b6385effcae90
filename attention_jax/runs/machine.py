"""What a process sets up before it computes: precision, a compilation cache that survives it, small memory."""

import atexit
import ctypes
import functools
import gc
import hashlib
import os
import platform
from pathlib import Path

import jax
from ml_collections import ConfigDict

from attention_jax.errors import UserError

LONG = 0.2  # seconds: a compilation that is kept for other processes, and cleared up after
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
OWN_PAGES = 16 * 2**20  # bytes from which an array has pages of its own, which are new ones at each call
KEPT = 64 * 2**20  # bytes that lie free at the end of a heap before glibc gives them back
YOUNG = 20_000  # objects: so many new ones before Python looks which of them are garbage
COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX's name of the event, read from its cache or not


def set_up(precision: ConfigDict) -> None:
    """Apply the config's matmul precision and turn the persistent compilation cache on."""
    try:
        jax.config.update("jax_default_matmul_precision", precision.matmul)
    except ValueError:
        choices = "default, high, highest, bfloat16, tensorfloat32 or float32"
        raise UserError(f"config.precision.matmul={precision.matmul!r}: choose {choices}.") from None
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and (folder := cache_folder()) is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LONG)
    give_back_freed_memory()
    look_for_garbage_seldom()


@functools.cache
def give_back_freed_memory() -> None:
    """From now on, give large arrays, and what a long compilation has freed, back to the system.

    glibc alone would keep, of a compiled training step of a few million parameters, hundreds of MB, in pieces between
    what is used; and of its eight heaps a core, which threads fill in turn, ever more. With fewer heaps than threads
    that compile, those wait for one another. An array with pages of its own is cleared anew at each call: small ones
    have none.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    for option, value in (
        (M_ARENA_MAX, 1 + (os.cpu_count() or 1)),
        (M_MMAP_THRESHOLD, OWN_PAGES),
        (M_TRIM_THRESHOLD, KEPT),
    ):
        libc.mallopt(option, value)

    def give_back(event: str, duration_secs: float, **about: str | int) -> None:
        if event == COMPILED and duration_secs >= LONG:
            libc.malloc_trim(0)

    jax.monitoring.register_event_duration_secs_listener(give_back)


@functools.cache
def look_for_garbage_seldom() -> None:
    """From now on, let Python look through its objects seldom, and not when the process ends.

    Tracing makes many objects, and those of JAX and of traced programs are hundreds of thousands that are no garbage.
    """
    gc.set_threshold(YOUNG)
    atexit.register(gc.freeze)


@functools.cache
def describe_device() -> str:
    """What computes: "1 × NVIDIA A100 (gpu)", or "2 cores of AMD EPYC (cpu)": those that this process may use."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        names = [line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return f"{cores} core{'s' * (cores != 1)} of {names[0] if names else platform.processor()} (cpu)"
    return f"{jax.device_count()} × {device.device_kind} ({device.platform})"


def free_memory() -> int:
    """Bytes that the first device has left; those of the machine where it is a CPU."""
    device = jax.devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cache_folder() -> Path | None:
    """The user's cache folder, one part for each kind of processor: compiled code does not travel.

    None for a user without a home, as in a container: others might write to a folder that is not theirs alone.
    """
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    features = hashlib.sha256(_processor().encode()).hexdigest()[:12]
    return base / "attention_jax" / "compiled" / features


def _processor() -> str:
    lines = {line for line in _cpu_lines() if line.startswith(("flags", "Features", "model name"))}
    return "".join(sorted(lines)) or platform.processor()


def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


class Profiler:
    """A trace of a few calls, for TensorBoard or Perfetto, where a folder is given; the first call compiles."""

    FIRST, LAST = 1, 4

    def __init__(self, folder: Path | None):
        self._folder, self._calls, self._is_tracing = folder, 0, False

    def tick(self) -> None:
        """Count one call; starts and ends the trace."""
        self._calls += 1
        if self._folder is not None and self._calls == self.FIRST:
            jax.profiler.start_trace(str(self._folder))
            self._is_tracing = True
        elif self._calls == self.LAST:
            self.stop()

    def stop(self) -> None:
        """End the trace where one runs."""
        if self._is_tracing:
            jax.profiler.stop_trace()
            self._is_tracing = False
