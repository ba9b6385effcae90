"""What a user sees while something trains: a bar of its steps, and lines beside it, on standard error."""

import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from attention_jax import hosts
from attention_jax.terminal import printable


class Bar:
    """A progress bar over steps with the loss and tokens a second beside it."""

    def __init__(self, total: int, done: int, tick: Callable[[], None] = lambda: None):
        interval = 0.5 if sys.stderr.isatty() else 30
        shown: dict[str, Any] = {
            "unit": "step",
            "dynamic_ncols": True,
            "mininterval": interval,
            "disable": not hosts.is_first(),
        }
        self._bar = tqdm(total=total, initial=done, **shown)
        self._tick = tick
        self._tokens, self._started = 0.0, time.perf_counter()

    def advance(self, steps: int, tokens: float, loss: float) -> None:
        """Some steps later."""
        self._tick()
        self._tokens += tokens
        rate = self._tokens / (time.perf_counter() - self._started)
        self._bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} tokens/s", refresh=False)
        self._bar.update(steps)

    def skip(self, steps: int) -> None:
        """Some steps that were done before."""
        if not self._bar.disable:
            self._bar.initial += steps
        self._bar.update(steps)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *exception) -> None:
        self._bar.close()


def tell(line: str, by_all: bool = False) -> None:
    """A line for the user, beside the output; the first host's, or every host's own."""
    if by_all or hosts.is_first():
        tqdm.write(printable(line), file=sys.stderr)
