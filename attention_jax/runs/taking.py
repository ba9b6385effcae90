"""A run that becomes a larger one: what lies whole in RUN/more/joined takes its place, whenever that was killed.

RUN/more/joined is a run of more seeds, made by runs/gaining.py; its result.json, written last, tells that it is whole.
Nothing of the run changes before. From then on, who opens the run next takes it over.
"""

import shutil
from pathlib import Path

LAST = ("config.json", "result.json")  # to be moved; while the result is not, the rest may have to be


def joined_in(path: Path) -> Path:
    """Where the larger run lies."""
    return path / "more" / "joined"


def is_to_take(path: Path) -> bool:
    """Whether a run waits to be replaced by a whole larger one."""
    return (joined_in(path) / "result.json").exists()


def take(path: Path) -> None:
    """Replace a run by the larger one that waits, if one does; its own files that the larger lacks stay.

    After a kill the next call goes on: what is not in the larger run any more was moved before.
    """
    shutil.rmtree(_aside(path / "more"), ignore_errors=True)
    if not is_to_take(path):
        return
    joined = joined_in(path)
    if (joined / "checkpoints").exists():
        if (path / "checkpoints").exists():
            discard(path / "more" / "replaced")
            (path / "checkpoints").replace(path / "more" / "replaced")
        (joined / "checkpoints").replace(path / "checkpoints")
    first = [file for file in joined.rglob("*") if file.is_file() and file.relative_to(joined).as_posix() not in LAST]
    for file in (*first, *(joined / name for name in LAST)):
        target = path / file.relative_to(joined)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            file.replace(target)
    discard(path / "more")


def discard(folder: Path) -> None:
    """Remove a folder so that a kill leaves nothing of it under its name."""
    shutil.rmtree(_aside(folder), ignore_errors=True)
    if folder.exists():
        folder.replace(_aside(folder))
        shutil.rmtree(_aside(folder), ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.with_name(f"removed-{folder.name}")
