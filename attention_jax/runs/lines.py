"""Lines of text from a file or from standard input."""

import sys
from collections.abc import Iterator
from pathlib import Path

from attention_jax.errors import UserError


def read_lines(path: str) -> Iterator[str]:
    """The lines of a UTF-8 file, or of standard input for "-", without their ends, one at a time.

    Raises UserError where there is no such file, no line, or a line that is not UTF-8, and names it.
    """
    name = "standard input" if path == "-" else path
    if path != "-" and (not Path(path).exists() or Path(path).is_dir()):
        raise UserError(f"{path}: {'a folder, and a file is needed' if Path(path).is_dir() else 'no such file'}.")
    with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
        number = 0
        for number, raw in enumerate(file, start=1):
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise UserError(f"{name}:{number}: not UTF-8.") from None
    if number == 0:
        raise UserError(f"{name}: empty, not a line to read.")
