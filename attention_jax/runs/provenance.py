"""Where a result comes from: the commit of the code that made it, whether its tree was changed, and the command."""

import functools
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = ("attention_jax", "experiments/*.py", "configs", "launch.py")


@functools.cache
def provenance() -> dict[str, Any]:
    """The commit, whether code was changed or added since ("" and None outside of a checkout), and the command.

    Asked for when a process starts: what it runs is what was there then.
    """
    commit, status = git("rev-parse", "--short", "HEAD"), git("status", "--porcelain", "--", *CODE)
    known = commit is not None and status is not None
    code = {"commit": (commit or "").strip(), "changed": bool((status or "").strip()) if known else None}
    return {"code": code, "command": f"{program()} {shlex.join(sys.argv[1:])}".strip()}


def program() -> str:
    """What was started, as a user writes it: `python launch.py`, `python -m attention_jax.launcher`, or its command."""
    path = Path(sys.argv[0])
    if path.name == "__main__.py":  # of a package, by python -m
        return f"python -m {'.'.join(path.parts[-3:-1])}"
    return f"python {shlex.quote(path.name)}" if path.suffix == ".py" else shlex.quote(path.name)


def git(*arguments: str) -> str | None:
    """What git says of this checkout, or None where it cannot."""
    if not (ROOT / "launch.py").is_file():  # an installed copy: a repository around it is another's
        return None
    try:
        asked = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return asked.stdout if asked.returncode == 0 else None
