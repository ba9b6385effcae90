"""What every part of a benchmark is handed: a folder, the peers, and how the project's launcher is started."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax.errors import UserError
from attention_jax.tasks.benchmark.peers import Peers

CACHE = "JAX_COMPILATION_CACHE_DIR"
POLL = 0.02  # seconds


class Tools(NamedTuple):
    """`folder` is the part's own; `launcher` the command that starts the launcher, in the folder `home`."""

    folder: Path
    peers: Peers
    launcher: Sequence[str]
    home: Path

    def launch(
        self, flags: Sequence[str], cache: Path, seen: Callable[[], bool] = lambda: False, text: str = ""
    ) -> tuple[float, float]:
        """Seconds from the start of the launcher until `seen` and until its end; `text` is its standard input.

        Raises UserError where it fails, with its last line.
        """
        log = self.folder / "launched.log"
        given = self.folder / "given.txt"
        given.write_text(text, encoding="utf-8")
        started, first = time.perf_counter(), 0.0
        with open(log, "w", encoding="utf-8") as out, open(given, encoding="utf-8") as lines:
            environment: Mapping[str, str] = {**os.environ, CACHE: str(cache)}
            process = subprocess.Popen(
                [*self.launcher, *flags], cwd=self.home, env=environment, stdin=lines, stdout=out, stderr=out
            )
            while process.poll() is None:
                if not first and seen():
                    first = time.perf_counter() - started
                time.sleep(POLL)
        if process.returncode:
            said = log.read_text(encoding="utf-8").strip().splitlines() or ["it said nothing"]
            raise UserError(f"{' '.join(flags)}: ended with status {process.returncode}: {said[-1]}")
        return first, time.perf_counter() - started


Part = Callable[..., Iterator]  # (config, tools) → rows and growths
