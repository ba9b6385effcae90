"""Other libraries at the same work: a script in a process of its own, which measures once for each line that it reads.

Libraries are not installed beside the project's own: `config.peers` names the Python that has them.
"""

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from attention_jax.errors import UserError


class Asked(NamedTuple):
    """A script, what it needs to be installed, and its flags."""

    script: str
    package: str
    flags: Mapping[str, Any]


class Peer:
    """A running script; `ask` lets it measure once."""

    def __init__(self, python: str, path: Path, flags: Mapping[str, Any]):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [python, str(path), *(f"--{name}={value}" for name, value in flags.items())]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(command, text=True, **pipes)

    def ask(self) -> dict[str, Any]:
        """What the script says of one measurement. Raises UserError where it has ended, with its last line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        if line := self._process.stdout.readline():
            return json.loads(line)
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or ["it ended without a word"]
        raise UserError(f"{' '.join(map(str, self._process.args[:2]))}: {said[-1]}.")  # type: ignore[index]

    def close(self) -> None:
        """End the script."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


class Peers(NamedTuple):
    """Where the peers' scripts are, and the Python that runs them; "": this one."""

    folder: Path
    python: str = ""

    @property
    def interpreter(self) -> str:
        return self.python or sys.executable

    def has(self, package: str) -> bool:
        """Whether a package is installed for the scripts."""
        return _has(self.interpreter, package)

    @contextmanager
    def running(self, asked: Mapping[str, Asked]) -> Iterator[dict[str, Peer]]:
        """Those whose package is installed, by the names that they were asked by, and ended at the end."""
        with ExitStack() as stack:
            found = {}
            for name, one in asked.items():
                if self.has(one.package):
                    found[name] = Peer(self.interpreter, self.folder / one.script, one.flags)
                    stack.callback(found[name].close)
            yield found


@functools.cache
def _has(python: str, package: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], check=False).returncode == 0
    except OSError as error:
        raise UserError(f"config.peers={python!r}: {error.strerror}. Name a Python that has the peers.") from None
