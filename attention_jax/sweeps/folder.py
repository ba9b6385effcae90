"""A sweep's folder.

SWEEP/config.json      the config that was asked for, with its sections `sweep` and `population`
SWEEP/plan.json        every cell, and which share a program
SWEEP/cells/NAME/      a run's folder each; a cell is done when its result.json is there
SWEEP/waves/NAME/      the lock and, while it trains, the checkpoints of cells that train together
SWEEP/data/            corpora, imported once for all cells that share them
SWEEP/result.json      the settings in order, what the experiment says of all cells together, and a record a cell
SWEEP/table.md         the answer to read: its sentence, tables and notes; table.csv and .tex have the settings,
SWEEP/tables/          and these every other table, folded ones too
SWEEP/cells.csv        these records, a row a cell and seed: every override, its status, its folder, every metric
SWEEP/search.json      of a search alone: what it draws from, and the trials that were asked for, a batch a list
SWEEP/by_setting/      a link to each cell by its setting: score=cosine,seed=1 → ../cells/NAME
"""

import dataclasses
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.evaluation.metrics import require_comparable
from attention_jax.files import read_json
from attention_jax.runs.code import Code, code_of, shown
from attention_jax.runs.config import nested
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import read_config
from attention_jax.runs.forms import as_result
from attention_jax.sweeps.cells import VARIANT
from attention_jax.sweeps.plan import Plan, Program, read_plan
from attention_jax.sweeps.settings import SECTIONS

SHOWN_CELLS = 8  # in a message
_FOLDERS: dict[tuple[Path, str], Path] = {}  # data is identified once a process


@dataclasses.dataclass(frozen=True)
class Sweep:
    """An open sweep."""

    path: Path
    experiment: Experiment
    config: ConfigDict
    plan: Plan
    scratch: Path | None = None  # for data that the folder lacks, while a sweep is only previewed
    kept: dict[str, Together] | None = None  # what programs share, for the batches of a search to come; None: not kept

    def cell(self, name: str) -> Path:
        """A cell's run folder."""
        return self.path / "cells" / name

    def is_done(self, name: str) -> bool:
        """Whether the cell's result is there; one that cannot be read does not count."""
        return read_result(self.cell(name)) is not None

    def has_ended(self, name: str) -> bool:
        """Whether the cell is done, or failed."""
        return self.is_done(name) or (self.cell(name) / "error.txt").exists()

    @functools.cached_property
    def programs(self) -> dict[str, Program]:
        """Each cell's program."""
        return {name: program for program in self.plan.programs for wave in program.waves for name in wave}

    def config_of(self, name: str) -> ConfigDict:
        """A cell's config."""
        return nested(self.programs[name].config | self.plan.cells[name].dynamic)

    @functools.cached_property
    def flat(self) -> dict[str, dict[str, Any]]:
        """Each cell's config, flat, and its variant where it has one."""
        cells = self.plan.cells
        return {
            name: self.programs[name].config | cells[name].dynamic | variant_of(cells[name].overrides) for name in cells
        }

    def settings_in(self, names: Iterable[str]) -> list[list[str]]:
        """The cells that differ in seeds alone, together, in the order of their names."""
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(without_seeds(self.flat[name]), []).append(name)
        return list(found.values())

    def seeds_of(self, setting: Sequence[str]) -> list[int]:
        """A setting's seeds, in rising order."""
        return sorted(seed for name in setting for seed in self.flat[name]["seeds"])

    def choosers(self, setting: Sequence[str]) -> frozenset[int]:
        """The seeds of a setting that choose at rungs and so are not reported; none where all do both.

        They are those that were planned first, whatever seeds came later.
        """
        whole = self._whole[without_seeds(self.flat[setting[0]])]
        planned = [seed for name in whole for seed in self.flat[name]["seeds"]]
        return frozenset(planned[: self.config.population.halving_seeds])

    @functools.cached_property
    def _whole(self) -> dict[str, list[str]]:
        """Every setting's cells, of whichever program and code."""
        return {without_seeds(self.flat[names[0]]): names for names in self.settings_in(self.flat)}

    def agreeing(self, names: Iterable[str]) -> list[list[str]]:
        """Cells in groups, each of which agrees on every key of `config.sweep.within`."""
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(repr([self.flat[name].get(key) for key in self.config.sweep.within]), []).append(name)
        return list(found.values())

    def data_of(self, program: Program) -> Path:
        """Where the cells of a program have their data."""
        return data_folder(
            self.path, self.scratch, self.experiment, program.config | self.plan.cells[program.waves[0][0]].dynamic
        )

    def steps(self, program: Program) -> int:
        """How many steps a member of a program takes; 1 where nothing is trained step by step."""
        return self.experiment.steps(nested(program.config))


def require_metrics(config: ConfigDict, experiment: Experiment, cells: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The metrics that a sweep compares its cells by, flat configs; the first leads.

    Raises UserError for a name that is no metric's, and for a metric that does not compare the cells; that goes for the
    metric that ranks them at rungs too. A key of `config.sweep.within` that no cell has makes no groups: it is refused.
    """
    for key in config.sweep.within:
        if not any(key in cell for cell in cells):
            raise UserError(f"config.sweep.within={config.sweep.within}: no cell has a {key!r}.")
    own = experiment.metric(config)
    asked = tuple(dict.fromkeys(name.strip() for name in config.sweep.metric.split(",") if name.strip()))
    used = [("config.sweep.metric", name) for name in asked] or [("config.train.best_by", own)]
    if config.population.halving:
        used.append(("config.train.best_by", config.train.best_by))
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(repr([cell.get(key) for key in config.sweep.within]), []).append(cell)
    for asked_by, name in used:
        others = (own, *experiment.compared_by) if asked_by == "config.sweep.metric" else experiment.compared_by
        for group in groups.values():
            require_comparable(name, asked_by, group, others)
    return asked or (own,)


def without_seeds(flat: Mapping[str, Any]) -> str:
    """What a cell shares with the cells that differ from it in seeds alone."""
    return repr(sorted(item for item in flat.items() if item[0] not in ("seeds", VARIANT)))


def variant_of(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The variant of a config file that a cell is of, where a sweep chooses it."""
    return {VARIANT: overrides[VARIANT]} if VARIANT in overrides else {}


def data_folder(path: Path, scratch: Path | None, experiment: Experiment, flat: Mapping[str, Any]) -> Path:
    """The folder of a config's data in a sweep: one for each source, way to read it and vocabulary that is given."""
    statics = {key: value for key, value in flat.items() if key not in experiment.dynamic}
    read = sorted(item for item in statics.items() if item[0].startswith("data.") or item[0] == "train.init_from")
    named = repr(read)
    if (path, named) not in _FOLDERS:
        digest = hashlib.sha256(f"{named}{experiment.identify(nested(flat))}".encode()).hexdigest()
        _FOLDERS[path, named] = path / "data" / digest[:12]
    found = _FOLDERS[path, named]
    return found if scratch is None or found.exists() else scratch / found.name


def current_code(experiment: Experiment, config: ConfigDict) -> Code:
    """The code that makes the numbers of an experiment's cells: what its modules import, and what trains cells."""
    functions = {field.__module__ for field in experiment if inspect.isfunction(field)}
    prefixes = ("", "experiments.", "attention_jax.experiments.")  # a module, the checkout's, the installed copy
    loaded = {name: sys.modules.get(name) for name in (prefix + config.experiment for prefix in prefixes)}
    named = {name for name, module in loaded.items() if getattr(module, "EXPERIMENT", None) is experiment}
    return code_of(*sorted(functions | named), "attention_jax.sweeps.population")


def changed_since(sweep: Sweep) -> str:
    """Which files of its code say something else than when the sweep was planned; "" where none does."""
    now = current_code(sweep.experiment, sweep.config)
    if sweep.plan.code == now.version:
        return ""
    if not sweep.plan.files:
        return f"which files have changed since is not known ({sweep.plan.code} there, {now.version} now)"
    both = {*sweep.plan.files, *now.files}
    return f"changed since: {shown(path for path in both if sweep.plan.files.get(path) != now.files.get(path))}"


def read_result(cell: Path) -> dict | None:
    """A cell's result, or None where it is not there or is not whole."""
    try:
        return as_result(read_json((cell / "result.json").read_bytes()))
    except (OSError, ValueError):
        return None


def is_sweep(path: Path) -> bool:
    """Whether the folder is a sweep's."""
    return (path / "plan.json").exists()


def is_search(path: Path) -> bool:
    """Whether the folder is a search's, which is a sweep that chose its own cells."""
    return (path / "search.json").exists()


def refuse_sweep(path: Path, mode: str, flag: str) -> None:
    """Raise UserError where the folder is a sweep's, with its finished cells: the mode is of one run, `flag`'s."""
    if not is_sweep(path):
        return
    cells = sorted(cell.name for cell in (path / "cells").glob("*") if (cell / "result.json").exists())
    if not cells:
        raise UserError(f"{path}: a sweep, none of whose cells is done. Go on with it: --mode=sweep.")
    named = ", ".join(cells[:SHOWN_CELLS]) + ", …" * (len(cells) > SHOWN_CELLS)
    raise UserError(
        f"{path}: a sweep, and --mode={mode} is of one run: choose one of its {len(cells)} finished cells, "
        f"{named}: {flag}={path / 'cells' / cells[0]}"
    )


def open_sweep(experiment: Experiment, path: Path) -> Sweep:
    """The sweep as it was planned. Raises UserError where there is none."""
    config, plan = stored_config(path), read_plan(path / "plan.json")
    if config is None or plan is None:
        raise UserError(f"{path}: no sweep here. Start one with --mode=sweep --config=….")
    return Sweep(path, experiment, config, plan)


def stored_config(path: Path) -> ConfigDict | None:
    """The config a run or sweep was started with, or None where there is none.

    Keys that say how a sweep runs, and that an older version did not have, get their defaults.
    """
    config = read_config(path)
    if config is None:
        return None
    sections = {name: {**SECTIONS[name], **config[name].to_dict()} for name in SECTIONS if name in config}
    return ConfigDict({**config.to_dict(), **sections}).lock()


def failures(sweep: Sweep) -> dict[str, str]:
    """The cells that failed, with the last line of what they failed with."""
    texts = {name: sweep.cell(name) / "error.txt" for name in sweep.plan.cells if not sweep.is_done(name)}
    return {name: _last_line(path) for name, path in texts.items() if path.exists()}


def _last_line(path: Path) -> str:
    return next(reversed(path.read_text(encoding="utf-8", errors="replace").strip().splitlines()), "")
