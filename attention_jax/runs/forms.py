"""The forms of what a run's folder says: its config, its result, its lines of metrics."""

import math
import re
from typing import Any

from attention_jax.files import read_json
from attention_jax.runs.config import flatten, tupled

COMMIT = re.compile("[0-9a-f]*")  # "" where it is not known
SECTIONS = ("data", "model", "train", "optimizer", "evaluate", "generate", "precision", "sweep", "population")


def as_config(found: Any) -> dict[str, Any]:
    """What config.json says, with tuples. Raises ValueError where a part that every mode reads is of another type."""
    if not isinstance(found, dict):
        raise ValueError(f"a {type(found).__name__}, and an object is needed")
    for key in (key for key in SECTIONS if key in found):
        if not isinstance(found[key], dict):
            raise ValueError(f"{key} is {found[key]!r}, and must be a section")
    flat = flatten(found)
    for key in (key for key in flat if key == "experiment" or key.endswith(("path", "init_from"))):
        if not isinstance(flat[key], str):
            raise ValueError(f"{key} is {flat[key]!r}, and must be a text")
    if isinstance(found.get("experiment"), dict):
        raise ValueError("experiment is a section, and must be a text")
    if not _are_seeds(found.get("seeds", [])):
        raise ValueError(f"seeds is {found['seeds']!r}, and must be a list of whole numbers")
    return tupled(found)


def as_result(found: Any) -> dict[str, Any]:
    """What result.json says. Raises ValueError where a part that every reader needs is missing or of another type."""
    if not isinstance(found, dict):
        raise ValueError(f"a {type(found).__name__}, and an object is needed")
    if not isinstance(found.get("status"), str) or not _are_seeds(found.get("seeds")):
        raise ValueError("without its status or its seeds")
    members, code = found.get("members", []), found.get("code", {})
    if not isinstance(members, list) or not all(isinstance(member, dict) for member in members):
        raise ValueError("its members are no list of objects")
    for one in code if isinstance(code, list) else [code]:
        if not isinstance(one, dict) or not COMMIT.fullmatch(str(one.get("commit", ""))):
            raise ValueError("its code is not told by a commit")
    return found


def _are_seeds(found: Any) -> bool:
    return isinstance(found, list) and all(type(seed) is int for seed in found)


def as_line(text: bytes) -> dict | None:
    """A line of metrics, which older versions wrote with NaN and Infinity; None where it is not one."""
    try:
        line = read_json(text, parse_constant=lambda name: None)
    except ValueError:
        return None
    if not isinstance(line, dict) or not {"step", "seed", "seconds"} <= set(line):
        return None
    is_whole = type(line["step"]) is int and type(line["seed"]) is int and line["seconds"] is not None
    return finite(line) if is_whole and all(map(_is_number_or_none, line.values())) else None


def _is_number_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
