"""What a user sees while something trains: a bar of its steps, and lines beside it, on standard error."""

import sys
from collections.abc import Callable

from tqdm import tqdm

from attention_jax.terminal import printable


class Bar:
    """A progress bar over steps with the loss and tokens a second beside it."""

    def __init__(self, total: int, done: int, tick: Callable[[], None] = lambda: None):
        interval = 0.5 if sys.stderr.isatty() else 30
        self._bar = tqdm(total=total, initial=done, unit="step", dynamic_ncols=True, mininterval=interval)
        self._tick = tick
        self._tokens = 0.0

    def advance(self, steps: int, tokens: float, loss: float) -> None:
        """Some steps later."""
        self._tick()
        self._tokens += tokens
        rate = self._tokens / (self._bar.format_dict["elapsed"] or 1e-9)
        self._bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} tokens/s", refresh=False)
        self._bar.update(steps)

    def skip(self, steps: int) -> None:
        """Some steps that were done before."""
        self._bar.initial += steps
        self._bar.update(steps)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *exception) -> None:
        self._bar.close()


def tell(line: str) -> None:
    """A line for the user, beside the output."""
    tqdm.write(printable(line), file=sys.stderr)
