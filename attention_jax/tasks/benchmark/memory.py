"""The memory that a piece of work takes of the host, as Linux counts it."""

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")
PROCESS = Path("/proc/self")
FORGET_PEAK = "5"  # what proc(5) says of clear_refs
EVERY = 0.01  # seconds


def peak_megabytes(work: Callable[[], Answer]) -> tuple[Answer, float]:
    """What `work` gives, and the most that the process held meanwhile above what it held before, in MB.

    Raises OSError where there is no /proc.
    """
    (PROCESS / "clear_refs").write_text(FORGET_PEAK)
    before = held("VmRSS")
    answer = work()
    return answer, held("VmHWM") - before


def own_megabytes(work: Callable[[], object]) -> float:
    """The most that the process held of its own while it worked above what it held before, in MB.

    That is looked at every hundredth of a second. Pages of mapped files, which the kernel takes back, are not in it.
    """
    most = before = held("RssAnon")
    is_done = threading.Event()

    def look() -> None:
        nonlocal most
        while not is_done.wait(EVERY):
            most = max(most, held("RssAnon"))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        work()
    finally:
        is_done.set()
        looking.join()
    return max(most, held("RssAnon")) - before


def alone(work: Callable[..., Answer], *given: object) -> Answer:
    """`work(*given)` in a process of its own, which other work has left no memory to use again."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *given).result()


def held(field: str) -> float:
    """A field of /proc/self/status in MB: VmRSS, VmHWM."""
    lines = (PROCESS / "status").read_text().splitlines()
    (found,) = (line.split() for line in lines if line.startswith(f"{field}:"))
    return int(found[1]) * 1024 / 1e6
