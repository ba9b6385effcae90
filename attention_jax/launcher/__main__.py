"""Where the launcher starts: `python launch.py`, `python -m attention_jax.launcher` and the command `attention-jax`."""

import signal
import sys
import time
from collections.abc import Sequence

STARTED = time.perf_counter()  # before the imports


def main(command: Sequence[str] = (sys.executable, "-m", "attention_jax.launcher")) -> None:
    """Do what the command line asks for; `command` starts the launcher again, as the workers of a sweep do."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is something to save, Ctrl-C just stops
    from attention_jax.launcher.app import launch

    launch(command, STARTED)


if __name__ == "__main__":
    main()
