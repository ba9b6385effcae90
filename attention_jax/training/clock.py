"""Where the wall time of a run goes, by phase."""

import contextlib
import time
from collections.abc import Iterator, Mapping

# What a run's time is divided into; `lost` is what a restart did again, `other` all that is in no phase.
PHASES = ("steps", "compile", "data", "save", "evaluation", "lost")


class Clock:
    """Seconds by phase, since the run's first start."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    def add(self, phase: str, seconds: float) -> None:
        """Put seconds down to a phase."""
        self.seconds[phase] += seconds

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Put the time inside down to a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - started)

    def go_on(self, earlier: Mapping[str, float]) -> None:
        """Begin with the seconds of earlier processes."""
        for phase in PHASES:
            self.seconds[phase] += earlier.get(phase, 0.0)


def goodput(seconds: Mapping[str, float], total: float) -> dict[str, float]:
    """The share of a run's wall time in each phase, `other` being what is in none."""
    shares = {phase: spent / max(total, 1e-9) for phase, spent in seconds.items()}
    return shares | {"other": max(1 - sum(shares.values()), 0.0)}
