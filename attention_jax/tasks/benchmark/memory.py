"""The memory that a piece of work takes of the host, as Linux counts it."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")
PROCESS = Path("/proc/self")
FORGET_PEAK = "5"  # what proc(5) says of clear_refs


def peak_megabytes(work: Callable[[], Answer]) -> tuple[Answer, float]:
    """What `work` gives, and the most that the process held meanwhile above what it held before, in MB.

    Raises OSError where there is no /proc.
    """
    (PROCESS / "clear_refs").write_text(FORGET_PEAK)
    before = held("VmRSS")
    answer = work()
    return answer, held("VmHWM") - before


def held(field: str) -> float:
    """A field of /proc/self/status in MB: VmRSS, VmHWM."""
    lines = (PROCESS / "status").read_text().splitlines()
    (found,) = (line.split() for line in lines if line.startswith(f"{field}:"))
    return int(found[1]) * 1024 / 1e6
