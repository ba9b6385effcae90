"""Files that are there whole or not at all, and what is read of a file of JSON."""

import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Write aside, then rename. Raises OSError where that cannot be done; the file aside is then removed.

    A link is never written through: the rename replaces one, and one that lies aside is refused.
    """
    aside = path.with_name(path.name + ".partial")
    try:
        with open(aside, "w", encoding="utf-8", opener=_no_link) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def read_json(content: bytes | str, **options: Any) -> Any:
    """What JSON says. Raises ValueError for what is none, is nested too deep, or has half a character."""
    try:
        found = json.loads(content, **options)
        json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate can be neither written nor shown
    except RecursionError:
        raise ValueError("nested too deep") from None
    return found


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
