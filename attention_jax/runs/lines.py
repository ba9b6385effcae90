"""Text from a file or from standard input: its lines, or all of it."""

import sys
from collections.abc import Iterator
from pathlib import Path

from attention_jax.errors import UserError
from attention_jax.stopping import waited_for


def read_lines(path: str) -> Iterator[str]:
    """The lines of a UTF-8 file, or of standard input for "-", without their ends, one at a time.

    Raises UserError where there is no such file, no line, or a line that is not UTF-8, and names it.
    """
    name = _named(path)
    with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
        number = 0
        for number, raw in enumerate(iter(lambda: waited_for(file.readline), b""), start=1):
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise UserError(f"{name}:{number}: not UTF-8.") from None
    if number == 0:
        raise UserError(f"{name}: empty, not a line to read.")


def read_whole(path: str) -> str:
    """All of a UTF-8 file, or of standard input for "-", as it stands; "" of a terminal, which is not waited for.

    Raises UserError where there is no such file, or it is not UTF-8.
    """
    name = _named(path)
    if path == "-" and sys.stdin.isatty():
        return ""
    raw = waited_for(sys.stdin.buffer.read) if path == "-" else Path(path).read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: byte {error.start:,} is not UTF-8.") from None


def _named(path: str) -> str:
    if path != "-" and (not Path(path).exists() or Path(path).is_dir()):
        raise UserError(f"{path}: {'a folder, and a file is needed' if Path(path).is_dir() else 'no such file'}.")
    return "standard input" if path == "-" else path
