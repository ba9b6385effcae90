"""The plan: which cells share a program, how, and in which waves; written once, and held to from then on."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attention_jax.errors import UserError
from attention_jax.files import read_json
from attention_jax.runs.code import Code
from attention_jax.runs.config import tupled
from attention_jax.sweeps.cells import Cell
from attention_jax.sweeps.space import Overrides

NAME = re.compile(r"[\w-]+", re.ASCII)  # of cells and programs, and of their folders
LOOP, VMAP, AUTO = "loop", "vmap", "auto"


class PlannedCell(NamedTuple):
    """A cell as the plan keeps it: its dynamic values, to be put into its program's config, and what it reads."""

    overrides: Overrides
    dynamic: dict[str, Any]
    data: str = ""  # a digest; "": nothing, or not known


class Program(NamedTuple):
    """Cells that share a compiled program, a wave of them at a time: they differ in dynamic values alone."""

    name: str
    config: dict[str, Any]  # flat, without the dynamic values
    how: str
    waves: list[list[str]]


class Plan(NamedTuple):
    """Every cell of a sweep, by name; its programs, called `groups` in plan.json; and the code it was planned with."""

    code: str  # its version
    cells: dict[str, PlannedCell]
    programs: list[Program]
    files: Mapping[str, str] = {}  # of the code: the digest of each


def require_dynamic(asked: Sequence[str], dynamic: Sequence[str]) -> None:
    """Raise UserError where a key that was asked to be dynamic is not."""
    for key in asked:
        if key not in dynamic:
            raise UserError(
                f"config.population.dynamic: {key!r} is static: it changes shapes or code, so that its values cannot "
                f"share a program. Dynamic are {', '.join(dynamic)}."
            )


def extend(
    plan: Plan | None,
    cells: Sequence[Cell],
    code: Code,
    dynamic: Sequence[str],
    choose: Callable[[Cell, int], tuple[str, int]],
) -> Plan:
    """The plan with the cells that it does not have yet; what it has stays as it is.

    `choose(a cell, how many share its program) → (how, cells a wave)` is asked once for each new program.
    """
    old = plan or Plan(code.version, {}, [])
    programs = {program.name: program for program in old.programs}
    fresh: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.name not in old.cells:
            fresh.setdefault(_program_name(cell, dynamic), []).append(cell)
    for name, own in fresh.items():
        how, size = (programs[name].how, _wave_size(programs[name])) if name in programs else choose(own[0], len(own))
        names = [cell.name for cell in own]
        waves = [names[first : first + size] for first in range(0, len(names), size)]
        known = programs.get(name, Program(name, _static(own[0].config, dynamic), how, []))
        programs[name] = known._replace(waves=[*known.waves, *waves])
    added = {cell.name: _planned(cell, dynamic) for own in fresh.values() for cell in own}
    return Plan(code.version, {**old.cells, **added}, list(programs.values()), code.files)


def only(plan: Plan, keeps: Callable[[str], bool]) -> Plan:
    """The plan without the cells that `keeps` says no to."""
    cells = {name: cell for name, cell in plan.cells.items() if keeps(name)}
    waves = {
        program.name: [[name for name in wave if name in cells] for wave in program.waves] for program in plan.programs
    }
    programs = [program._replace(waves=[wave for wave in waves[program.name] if wave]) for program in plan.programs]
    return plan._replace(cells=cells, programs=[program for program in programs if program.waves])


def read_plan(path: Path) -> Plan | None:
    """The plan in a file, or None where there is none. Raises UserError where it cannot be read."""
    if not path.exists():
        return None
    try:
        found = read_json(path.read_bytes())
        cells = {name: PlannedCell(*tupled(cell)) for name, cell in found["cells"].items()}
        programs = [
            Program(program["name"], tupled(program["config"]), program["how"], program["waves"])
            for program in found["groups"]
        ]
        _require_names([*cells, *(program.name for program in programs)])
        return Plan(found["code"], cells, programs, found.get("files", {}))
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not the plan of a sweep ({error}). Choose another --workdir.") from None


def _require_names(names: Sequence[str]) -> None:
    """Raise ValueError for a name that is no folder's inside the sweep's."""
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a cell or program")


def to_json(plan: Plan) -> str:
    """The plan as JSON, a line a cell."""
    cells = ",\n".join(f"  {json.dumps(name)}: {json.dumps(cell)}" for name, cell in plan.cells.items())
    programs = ",\n".join(f"  {json.dumps(program._asdict())}" for program in plan.programs)
    head = f'"code": {json.dumps(plan.code)},\n"files": {json.dumps(plan.files)}'
    return f'{{{head},\n"cells": {{\n{cells}\n}},\n"groups": [\n{programs}\n]}}\n'


def _planned(cell: Cell, dynamic: Sequence[str]) -> PlannedCell:
    return PlannedCell(cell.overrides, {key: cell.config[key] for key in dynamic if key in cell.config}, cell.data)


def _static(config: Mapping[str, Any], dynamic: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in dynamic}


def _program_name(cell: Cell, dynamic: Sequence[str]) -> str:
    config, _, code = cell.name.partition("-")
    statics = json.dumps([sorted(_static(cell.config, dynamic).items()), code], default=list)
    return hashlib.sha256(statics.encode()).hexdigest()[: len(config)]


def _wave_size(program: Program) -> int:
    return max(map(len, program.waves))
