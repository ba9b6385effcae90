"""Planning a sweep: every cell checked before anything runs, and what shares a program."""

import contextlib
import dataclasses
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict
from tqdm import tqdm

from attention_jax.errors import UserError
from attention_jax.runs.code import Code
from attention_jax.runs.config import flatten, nested
from attention_jax.runs.experiment import Experiment, Request, Together, require_seeds
from attention_jax.runs.folder import hold, read_config, refuse_other, to_json, write_whole
from attention_jax.runs.links import refuse_links
from attention_jax.runs.machine import free_memory
from attention_jax.runs.training import hyper_of, tell
from attention_jax.sweeps.cells import Cell, index_of, read_by, resolve
from attention_jax.sweeps.engines import ENGINES
from attention_jax.sweeps.folder import (
    Sweep,
    changed_since,
    current_code,
    data_folder,
    is_sweep,
    open_sweep,
    require_metrics,
    variant_of,
    without_seeds,
)
from attention_jax.sweeps.matching import MEASURES, matched
from attention_jax.sweeps.plan import LOOP, VMAP, Program, extend, only, read_plan, require_dynamic
from attention_jax.sweeps.plan import to_json as plan_to_json
from attention_jax.sweeps.settings import without_settings
from attention_jax.training.cost import memory
from attention_jax.training.hyper import dynamic_keys
from attention_jax.training.placement import mesh_of_state
from attention_jax.training.step import train_steps


def make_plan(experiment: Experiment, request: Request) -> Sweep:
    """Resolve and check every cell, and write the plan with those that it did not have yet.

    Without a config, the plan as it is.
    """
    if request.space is None:
        return open_sweep(experiment, request.workdir)
    path = request.workdir
    resolved = _resolve(experiment, request, None)
    refuse_links(path)
    with hold(path, wait=is_sweep(path) or not (path / "config.json").exists()):  # for who plans it at this moment
        sweep = _extended(experiment, request, resolved, None)
        write_whole(path / "plan.json", plan_to_json(sweep.plan))
        write_whole(path / "config.json", to_json(sweep.config))
    return sweep


@contextlib.contextmanager
def preview(experiment: Experiment, request: Request) -> Iterator[Sweep]:
    """The sweep as it would be planned. Its folder is only read; data that it lacks lie in a temporary one."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if request.space is None:
            yield dataclasses.replace(open_sweep(experiment, request.workdir), scratch=scratch)
            return
        yield _extended(experiment, request, _resolve(experiment, request, scratch), scratch)


class _Resolved(NamedTuple):
    cells: list[Cell]
    code: Code


def _resolve(experiment: Experiment, request: Request, scratch: Path | None) -> _Resolved:
    """Every cell, checked: its values first, before data are read or anything is compiled."""
    config, path = request.config, request.workdir
    assert request.space is not None
    assert request.configure is not None
    _require_settings(config, experiment)
    space = request.space()

    def adjust(configs):
        _check(experiment, configs)
        if not config.sweep.match:
            return configs
        found = _match(experiment, config, space, configs, functools.partial(data_folder, path, scratch, experiment))
        _check(experiment, found)
        return found

    code = functools.partial(current_code, experiment, config)
    cells = resolve(space, request.configure, experiment.identify, lambda: code().version, adjust)
    index_of([cell.overrides for cell in cells], config.sweep.baseline)
    _require_answerable(config, experiment, cells)
    return _Resolved(cells, code())


def _check(experiment: Experiment, configs: Sequence[Mapping[str, Any]]) -> None:
    for flat in configs:
        require_seeds(flat["seeds"])
    for flat in {repr({**flat, "seeds": 0}): flat for flat in configs}.values():
        experiment.check(nested(flat))


def _extended(experiment: Experiment, request: Request, resolved: _Resolved, scratch: Path | None) -> Sweep:
    """The plan in the sweep's folder with the cells that it lacks. Raises UserError where the folder is another's."""
    config, path, (cells, code) = request.config, request.workdir, resolved
    stored, plan = read_config(path), read_plan(path / "plan.json")
    if stored is not None and plan is None:
        raise UserError(f"{path}: holds a run, not a sweep. Choose another --workdir.")
    if stored is not None:
        refuse_other(path, without_settings(stored), without_settings(config))
    if not any((path / "cells").glob("*")):
        plan = None  # nothing was begun
    if plan is not None:
        sweep = Sweep(path, experiment, config, plan)
        _refuse_other_data(sweep, cells)
        if plan.code != code.version:
            plan, cells = only(plan, sweep.is_done), _of_other_code(sweep, cells)

    def choose(cell, count):
        return _how(experiment, config, nested(cell.config), data_folder(path, scratch, experiment, cell.config), count)

    dynamic = dict.fromkeys(key for cell in cells for key in dynamic_keys(cell.config, experiment.dynamic))
    return Sweep(path, experiment, config, extend(plan, cells, code, [*dynamic], choose), scratch)


def describe_plan(sweep: Sweep) -> str:
    """A line a program: its settings, how it runs, what is done, and an estimate of the rest from one timed step."""
    from tabulate import tabulate

    rows, total = [], 0.0
    for program in _shown(sweep.plan.programs):
        names = [name for wave in program.waves for name in wave]
        missing = [name for name in names if not sweep.is_done(name)]
        seconds, size = (
            _timed_step(sweep.experiment, sweep.config_of(names[0]), sweep.data_of(program)) if missing else (0.0, 0)
        )
        seeds = sum(len(sweep.config_of(name).seeds) for name in missing)
        total += (left := seconds * sweep.steps(program) * seeds)
        dynamic = dynamic_keys(sweep.flat[names[0]], sweep.experiment.dynamic)
        statics = {key for name in names for key in sweep.plan.cells[name].overrides if key not in dynamic}
        shown = sweep.flat[names[0]]
        rows.append(
            {
                "program": ", ".join(f"{key}={shown[key]}" for key in sorted(statics)) or "one program",
                "cells": len(names),
                "done": len(names) - len(missing),
                "how": f"{program.how}, {len(program.waves)} waves" if program.how == VMAP else program.how,
                "memory a member": f"{size / 2**20:,.0f} MiB",
                "left": f"{left / 60:,.1f} min",
            }
        )
    table = tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)
    return f"{table}\n\n{len(sweep.plan.cells)} cells; about {total / 60:,.1f} minutes of training left, one at a time"


def _shown(programs: Sequence[Program]) -> Iterable[Program]:
    """The programs behind a bar: a step of each that has cells left is compiled and timed."""
    return tqdm(programs, "a step of each program", unit="program", dynamic_ncols=True, file=sys.stderr)


def _refuse_other_data(sweep: Sweep, cells: Sequence[Cell]) -> None:
    """Raise UserError where a config reads other data, or starts from another run, than when a cell was planned."""
    now = {read_by(cell.config): cell.data for cell in cells}
    for name, planned in sweep.plan.cells.items():
        if planned.data and now.get(read_by(sweep.flat[name]), planned.data) != planned.data:
            raise UserError(
                f"{sweep.path}: the data of its cells, or the run that they start from, have changed since it was "
                "planned: settings of both do not compare. Choose another --workdir, or put back what was there."
            )


def _of_other_code(sweep: Sweep, cells: Sequence[Cell]) -> list[Cell]:
    """The cells; those that other code has done keep their names. Raises UserError unless `any_code` allows them."""
    done = sum(map(sweep.is_done, sweep.plan.cells))
    if not sweep.config.sweep.any_code:
        raise UserError(
            f"{sweep.path}: its {len(sweep.plan.cells)} cells, {done} of them done, were made by other code; "
            f"{changed_since(sweep)}. Choose another --workdir, or keep those that are done and make the others with "
            "today's code: --config.sweep.any_code=True."
        )
    by_config = {name.partition("-")[0]: name for name in sweep.plan.cells if sweep.is_done(name)}
    return [cell._replace(name=by_config.get(cell.name.partition("-")[0], cell.name)) for cell in cells]


def _require_settings(config: ConfigDict, experiment: Experiment) -> None:
    missing = [name for name in ("sweep", "population") if name not in config]
    if missing:
        raise UserError(f"config has no section {missing[0]!r}, which a sweep needs: attention_jax/sweeps/settings.py.")
    require_dynamic(config.population.dynamic, dynamic_keys(flatten(config), experiment.dynamic))
    if config.sweep.workers < 1:
        raise UserError(f"config.sweep.workers={config.sweep.workers}: needs 1 or more.")
    choices = (("sweep.engine", ENGINES), ("sweep.match", ("", *MEASURES)), ("population.how", ("auto", LOOP, VMAP)))
    for key, known in choices:
        section, _, name = key.partition(".")
        if config[section][name] not in known:
            raise UserError(f"config.{key}={config[section][name]!r}: choose one of {', '.join(map(repr, known))}.")
    _require_rungs(config.population)


def _require_rungs(population: ConfigDict) -> None:
    """Raise UserError for settings of successive halving that do not go together."""
    halving, rungs = population.halving, population.rungs
    if not 0 <= halving < 1:
        raise UserError(f"config.population.halving={halving}: needs 0 or more and less than 1.")
    if halving and not rungs:
        raise UserError(
            f"config.population.halving={halving} drops settings at rungs: set config.population.rungs too."
        )
    for name in ("rungs", "halving_seeds", "across"):
        if population[name] and not halving:
            key = f"config.population.{name}={population[name]}"
            raise UserError(f"{key} is for successive halving: set config.population.halving too.")


def _require_answerable(config: ConfigDict, experiment: Experiment, cells: Sequence[Cell]) -> None:
    """Raise UserError for cells that cannot be compared as was asked, before any of them runs."""
    flat = [cell.config | variant_of(cell.overrides) for cell in cells]
    seeds: dict[str, list[int]] = {}
    for one in flat:
        seeds.setdefault(without_seeds(one), []).extend(one["seeds"])
    for found in seeds.values():
        if len(set(found)) < len(found):
            twice = next(seed for seed in found if found.count(seed) > 1)
            raise UserError(f"sweep: seed {twice} of one setting is in two cells: name every seed of a setting once.")
    fewest, choosing = min(map(len, seeds.values())), config.population.halving_seeds
    if not 0 <= choosing < max(fewest, 1):
        raise UserError(
            f"config.population.halving_seeds={choosing}: needs 0 or more, and less than the {fewest} seeds of a "
            "setting: the others are reported."
        )
    if rungs := config.population.rungs:
        _require_before_the_end(rungs, flat)
    require_metrics(config, experiment, flat)


def _require_before_the_end(rungs: Sequence[int], flat: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError for a rung at which a cell is not training any more."""
    for one in flat:
        if "train.steps" not in one:
            raise UserError(
                f"config.population.rungs={rungs}: nothing is trained in steps here. Leave it and halving out."
            )
        if max(rungs) >= one["train.steps"]:
            raise UserError(
                f"config.population.rungs={rungs}: {max(rungs)} is not before the end of training, "
                f"config.train.steps={one['train.steps']}. Lower it."
            )


def _match(
    experiment: Experiment,
    config: ConfigDict,
    space: list[dict],
    configs: list[dict[str, Any]],
    folder_of: Callable[[Mapping[str, Any]], Path],
) -> list[dict[str, Any]]:
    """The cells' configs, all to cost what the baseline does; `folder_of` tells where their data are."""
    measure, key = config.sweep.match, config.sweep.match_by
    if (flops := experiment.flops) is None:
        raise UserError(f"config.sweep.match: {config.experiment} trains nothing to match.")

    def cost(flat):
        session = experiment.open(nested(flat), folder_of(flat))
        return flops(session) if measure == "flops" else _parameters(experiment.together(session, LOOP))

    def solve(flat):
        return matched(flat, key, config.sweep.match_unit, target, measure, cost)[key]

    target, found = cost(configs[index_of(space, config.sweep.baseline)]), []
    solved: dict[str, int] = {}
    for flat in tqdm(configs, f"matching {measure}", unit="cell", dynamic_ncols=True):
        dynamic = dynamic_keys(flat, experiment.dynamic)
        statics = repr(sorted(item for item in flat.items() if item[0] not in dynamic))
        solved[statics] = solved[statics] if statics in solved else solve(flat)
        found.append({**flat, key: solved[statics]})
    return found


def _parameters(together: Together) -> int:
    """How many parameters a model has with its own data's vocabulary, which a config only bounds."""
    assert together.trainer is not None
    return sum(leaf.size for leaf in jax.tree.leaves(together.trainer.blueprint.shapes().variables["params"]))


def _how(experiment: Experiment, config: ConfigDict, cell: ConfigDict, data: Path, count: int) -> tuple[str, int]:
    """How a new program's cells run, and how many at once."""
    how, most = config.population.how, config.population.most
    if how == "auto":
        how = experiment.on_cpu if jax.default_backend() == "cpu" else VMAP
    if how == LOOP:
        return how, 1
    room = most or _room(experiment, cell, data)
    if room < count:
        tell(f"{count} cells share a program: waves of {room}, which is what {'was asked' if most else 'memory takes'}")
    return how, max(min(room, count), 1)


def _room(experiment: Experiment, cell: ConfigDict, data: Path) -> int:
    """How many cells a device's memory takes side by side, with a fifth of it left free."""
    program, arguments = _one_call(experiment, cell, data)
    needed = memory(jax.jit(program).lower(*arguments).compile()) * len(cell.seeds)
    return max(int(0.8 * free_memory() / needed), 1)


def _timed_step(experiment: Experiment, cell: ConfigDict, data: Path) -> tuple[float, int]:
    """Seconds of a member's step, once it is compiled, and the bytes that it needs."""
    program, arguments = _one_call(experiment, cell, data)
    run = jax.jit(program).lower(*arguments).compile()
    jax.block_until_ready(run(*arguments))
    started = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return time.perf_counter() - started, memory(run)


def _one_call(experiment: Experiment, cell: ConfigDict, data: Path) -> tuple[Callable, tuple]:
    """A member's first training step on its data; or its program on zeros, where nothing is trained step by step."""
    together = experiment.together(experiment.open(cell, data), LOOP)
    if (trainer := together.trainer) is None:
        description = experiment.describe(cell)
        return description.step, jax.tree.map(_zeros, description.arguments)
    task, seed = trainer.task, cell.seeds[0]
    (state,) = trainer.create([seed])
    table, rows = trainer.feed(task.batches(seed, 0, 1), mesh_of_state(state))
    hyper = hyper_of(cell, seed) | together.traced(cell)
    del hyper["seed"]
    steps = functools.partial(train_steps, task.loss, trainer.rule, trainer.stepping)
    return steps, (state, table, rows, 1, hyper)


def _zeros(leaf):
    """Zeros of a shape; random keys where it is one of keys."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), leaf.shape)
    return jax.numpy.zeros(leaf.shape, leaf.dtype)
