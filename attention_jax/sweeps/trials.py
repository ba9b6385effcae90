"""The trials of a search, read from its folder: which were asked for, and what became of their cells."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.evaluation.comparison import mean_of
from attention_jax.evaluation.metrics import metric
from attention_jax.files import read_json
from attention_jax.runs.config import flatten, tupled
from attention_jax.runs.folder import write_whole
from attention_jax.sweeps.answer import members_of
from attention_jax.sweeps.folder import Sweep, failures, read_result
from attention_jax.sweeps.space import Choice, Draw, Overrides, Uniform
from attention_jax.sweeps.study import versions

ASKING = ("sampler", "pruner", "batch", "choosing_seeds", "seed")  # keys of config.search that decide what is asked


class Asked(NamedTuple):
    """What search.json has: what a study is made of, what it draws from, and the trials that it asked for, in order."""

    made_of: dict[str, Any]
    space: dict[str, Draw]
    trials: list[Overrides]


class Trial(NamedTuple):
    """A trial: its overrides, its cells by their names, and the mean that is told of it; None: dropped or diverged."""

    overrides: Overrides
    cells: list[str]
    value: float | None


def nothing_asked(config: ConfigDict, space: Mapping[str, Draw]) -> Asked:
    """A search before its first trial."""
    return Asked({key: config.search[key] for key in ASKING} | versions(config.search.sampler), dict(space), [])


def read_asked(path: Path) -> Asked | None:
    """What was asked for in a search's folder; None where nothing was. Raises UserError where it cannot be read."""
    file = path / "search.json"
    if not file.exists():
        return None
    try:
        found = read_json(file.read_bytes())
        space = {key: _draw(tupled(kept)) for key, kept in found["space"].items()}
        return Asked(found["made_of"], space, [tupled(trial) for trial in found["trials"]])
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not the trials of a search ({error}). Choose another --workdir.") from None


def write_asked(path: Path, asked: Asked) -> None:
    """Write what was asked for, a line a trial, unless all of it and more is there.

    Raises UserError where the folder has trials of another study.
    """
    before = read_asked(path) or asked
    changed = [key for key, value in asked.made_of.items() if before.made_of.get(key) != value]
    if changed or before.space != asked.space:
        what = f"{changed[0]} was {before.made_of.get(changed[0])!r}" if changed else "it drew from another space"
        raise UserError(f"{path}: holds another search: {what}. Choose another --workdir.")
    known = min(len(before.trials), len(asked.trials))
    if before.trials[:known] != asked.trials[:known]:
        raise UserError(f"{path}: its results do not lead to the trials that it has. Choose another --workdir.")
    if len(asked.trials) > len(before.trials) or before is asked:
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / "search.json", _to_json(asked))


def cells_of(sweep: Sweep, overrides: Overrides, seeds: Iterable[int]) -> list[str]:
    """The cells of a trial with some seeds, those that are planned."""
    wanted = [{**overrides, "seeds": (seed,)} for seed in seeds]
    cells = sweep.plan.cells.items()
    return [name for own in wanted for name, cell in cells if own.items() <= cell.overrides.items()]


def tried(sweep: Sweep, trials: Sequence[Overrides], objective: str) -> list[Trial]:
    """Trials that have ended, each with its value. Raises UserError where a cell failed or was not reached."""
    seeds = range(sweep.config.search.choosing_seeds)
    found = [Trial(overrides, cells_of(sweep, overrides, seeds), None) for overrides in trials]
    require_ended(sweep, [name for trial in found for name in trial.cells])
    return [
        trial._replace(value=mean_of(objective, [_value(sweep, name, objective) for name in trial.cells]))
        for trial in found
    ]


def best_of(trials: Sequence[Trial], objective: str) -> Trial:
    """The trial with the best value, the first of those that share it. Raises UserError where none has a value."""
    if all(trial.value is None for trial in trials):
        raise UserError("search: no trial has a value: all diverged or were dropped. Choose another space.")
    return max(trials, key=lambda trial: metric(objective).height(trial.value))


def require_ended(sweep: Sweep, names: Sequence[str]) -> None:
    """Raise UserError where cells have no result, with what they failed with."""
    failed, missing = failures(sweep), [name for name in names if not sweep.is_done(name)]
    if missing:
        told = [f"  {sweep.cell(name)}: {failed.get(name, 'not reached')}" for name in missing]
        raise UserError("\n".join((f"{len(missing)} cells have no result; the same command tries them again:", *told)))


def _value(sweep: Sweep, name: str, objective: str) -> float | None:
    result = read_result(sweep.cell(name))
    if result is None or result["status"] != "finished":
        return None
    ((_, member),) = members_of(result)
    return flatten(member).get(objective)


def _draw(kept: Mapping[str, Any]) -> Draw:
    return Choice(**kept) if "values" in kept else Uniform(**kept)


def _to_json(asked: Asked) -> str:
    space = json.dumps({key: draw._asdict() for key, draw in asked.space.items()})
    trials = ",\n".join(f"  {json.dumps(trial)}" for trial in asked.trials)
    return f'{{"made_of": {json.dumps(asked.made_of)},\n"space": {space},\n"trials": [\n{trials}\n]}}\n'
