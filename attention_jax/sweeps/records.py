"""Every cell of a sweep as a record, for result.json and cells.csv, and as a link by its setting."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attention_jax.errors import UserError
from attention_jax.reports.names import short_keys
from attention_jax.reports.tables import write_csv
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import MADE_BY, as_list
from attention_jax.runs.folder import Run
from attention_jax.sweeps.folder import Sweep, failures, read_result

LONGEST = 180  # characters of a link's name
OF_ALL = ("cost", "seconds")  # what a result has of all its seeds together


def records_of(sweep: Sweep) -> list[dict[str, Any]]:
    """A record a cell and seed: `overrides`, `seed`, `status`, `path`.

    Where it finished, also the `commit` of the code that made it, its `metrics`, flat, and its `learning`: what
    `config.train.best_by` was at each step.
    """
    failed = failures(sweep)
    return [record for name in sweep.plan.cells for record in _records(sweep, name, failed)]


def write_cells(sweep: Sweep, records: Sequence[Mapping[str, Any]]) -> None:
    """Write cells.csv, and link every cell that was begun by its setting."""
    keys = _union(record["overrides"] for record in records)
    metrics = _union(record.get("metrics", {}) for record in records)
    rows: list[Sequence[Any]] = [[*keys, "seed", "status", "path", *metrics]]
    for record in records:
        found, own = record.get("metrics", {}), record["overrides"]
        told = (record["seed"], record["status"], record["path"])
        rows.append([*(own.get(key, "") for key in keys), *told, *(found.get(name, "") for name in metrics)])
    write_csv(sweep.path / "cells.csv", rows)
    _link(sweep)


def of_seeds(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Each seed's own numbers in a finished result. Raises UserError where several seeds have theirs together."""
    if "members" not in result and len(result["seeds"]) > 1:
        seeds = ", ".join(map(str, result["seeds"]))
        raise UserError(f"sweep: the seeds ({seeds}) of a cell have one result together: give every seed a cell.")
    return result.get("members") or [result]


def _records(sweep: Sweep, name: str, failed: Mapping[str, str]) -> list[dict[str, Any]]:
    result, seeds = read_result(sweep.cell(name)), sweep.flat[name]["seeds"]
    overrides = {key: value for key, value in sweep.plan.cells[name].overrides.items() if key != "seeds"}
    known: dict[str, Any] = {"overrides": overrides, "path": f"cells/{name}"}
    if result is None or result["status"] != "finished":
        status = result["status"] if result else "failed" if name in failed else "missing"
        return [{**known, "seed": seed, "status": status} for seed in seeds]
    common = _numbers({key: result[key] for key in OF_ALL if key in result})
    members = [{key: value for key, value in own.items() if key not in ("ci95", *OF_ALL)} for own in of_seeds(result)]
    commits = [code["commit"] for code in as_list(result.get("code", [])) if code["commit"]]
    known |= {"status": "finished", "commit": ", ".join(commits)}
    return [
        {**known, "seed": seed, "metrics": _numbers(member) | common, "learning": _learning(sweep, name, seed)}
        for seed, member in zip(result["seeds"], members, strict=False)
    ]


def _learning(sweep: Sweep, name: str, seed: int) -> list[list[float]]:
    by, lines = sweep.flat[name].get("train.best_by"), Run(sweep.cell(name), 0.0).metrics()
    return [[line["step"], line[by]] for line in lines if line["seed"] == seed and by in line]


def _numbers(tree: Mapping[str, Any]) -> dict[str, float]:
    kept = {key: value for key, value in tree.items() if key not in ("data", *MADE_BY)}
    found = flatten(kept).items()
    return {key: value for key, value in found if isinstance(value, (int, float)) and not isinstance(value, bool)}


def _union(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _link(sweep: Sweep) -> None:
    folder = sweep.path / "by_setting"
    folder.mkdir(exist_ok=True)
    for child in folder.iterdir():
        if child.is_symlink():
            child.unlink()
    for name, link in link_names(sweep).items():
        if sweep.cell(name).exists() and not os.path.lexists(folder / link):  # a folder, where links were followed
            os.symlink(Path("..") / "cells" / name, folder / link)


def link_names(sweep: Sweep) -> dict[str, str]:
    """Each cell's name by its setting, such as score=cosine,seed=1: of letters, digits and -+.,=_:()."""
    overrides = {name: cell.overrides for name, cell in sweep.plan.cells.items()}
    short = short_keys([{k: v for k, v in one.items() if k != "seeds"} for one in overrides.values()])
    found: dict[str, str] = {}  # by link: two settings may have the same safe name
    for name, own in overrides.items():
        parts = [f"{title}={own[key]}" for key, title in short.items() if key in own]
        link = _safe(",".join((*parts, _seeds(sweep.flat[name]["seeds"]))))
        found[f"{link},{name}" if link in found else link] = name
    return {name: link for link, name in found.items()}


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)}={'+'.join(map(str, seeds))}"


def _safe(text: str) -> str:
    """A file's name: what is no part of one is a _, and what is too long is cut before its seed."""
    text = re.sub(r"[^\w.,=+:()-]+", "_", text, flags=re.ASCII)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"
