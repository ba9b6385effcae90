"""Where a result comes from: the commit of the code that made it, whether its tree was changed, and the command."""

import functools
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


@functools.cache
def provenance() -> dict[str, Any]:
    """The commit and whether files that it tracks were changed since (nothing outside a repository); the command."""
    command = {"command": shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]])}
    commit, status = git("rev-parse", "--short", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    if commit is None or status is None:
        return command
    return {"code": {"commit": commit.strip(), "changed": bool(status.strip())}, **command}


def git(*arguments: str) -> str | None:
    """What git says of this checkout, or None where it cannot."""
    try:
        asked = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return asked.stdout if asked.returncode == 0 else None
