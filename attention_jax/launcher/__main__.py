"""Where the launcher starts: `python launch.py`, `python -m attention_jax.launcher` and the command `attention-jax`."""

import os
import signal
import sys
import time
from collections.abc import Sequence

STARTED = time.perf_counter()  # before the imports
HUGE_PAGES = "glibc.malloc.hugetlb"  # 1: what glibc maps for large arrays asks the kernel for pages of 2 MB


def main(command: Sequence[str] = (sys.executable, "-m", "attention_jax.launcher")) -> None:
    """Do what the command line asks for; `command` starts the launcher again, as the workers of a sweep do."""
    ask_for_huge_pages()
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is something to save, Ctrl-C just stops
    from attention_jax.launcher.app import launch

    launch(command, STARTED)


def ask_for_huge_pages() -> None:
    """Start this process anew with glibc's tunable for huge pages, unless it has one or is being debugged.

    A compiled program asks for new pages at each call, which the kernel clears, and 512 small ones take it four times
    as long as a huge one. glibc reads its tunables when a process starts.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or HUGE_PAGES in tunables or sys.gettrace() is not None:
        return
    os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, f"{HUGE_PAGES}=1")))
    os.execv(sys.executable, (sys.executable, *sys.orig_argv[1:]))


if __name__ == "__main__":
    main()
