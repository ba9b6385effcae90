"""A sweep's folder and the modes over it: plan what is missing, do it, answer.

SWEEP/config.json      the config that was asked for, with its sections `sweep` and `population`
SWEEP/plan.json        every cell, and which share a program
SWEEP/cells/NAME/      a run's folder each; a cell is done when its result.json is there
SWEEP/waves/NAME/      the lock and, while it trains, the checkpoints of cells that train together
SWEEP/data/            corpora, imported once for all cells that share them
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.runs.experiment import Experiment, Request, Together, finished
from attention_jax.runs.folder import Busy, Run, hold, read_config, refuse_other, to_json, write_result, write_whole
from attention_jax.runs.interrupt import Interrupted, interruptible
from attention_jax.runs.machine import free_memory
from attention_jax.runs.population import Wave, train_wave
from attention_jax.runs.training import Bar, tell
from attention_jax.sweeps.cells import NOT_OF_A_CELL, Cell, code_version, nested, resolve, without_settings
from attention_jax.sweeps.engines import ENGINES
from attention_jax.sweeps.plan import LOOP, VMAP, Group, Plan, extend, read_plan, require_dynamic
from attention_jax.sweeps.plan import to_json as plan_to_json
from attention_jax.training.cost import cost

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = ("attention_jax", "experiments")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """An open sweep."""

    path: Path
    experiment: Experiment
    config: ConfigDict
    plan: Plan

    def cell(self, name: str) -> Path:
        """A cell's run folder."""
        return self.path / "cells" / name

    def is_done(self, name: str) -> bool:
        """Whether the cell's result is there; one that cannot be read does not count."""
        return read_result(self.cell(name)) is not None

    @functools.cached_property
    def groups(self) -> dict[str, Group]:
        """Each cell's group."""
        return {name: group for group in self.plan.groups for wave in group.waves for name in wave}

    def config_of(self, name: str) -> ConfigDict:
        """A cell's config."""
        return nested(self.groups[name].config | self.plan.cells[name].dynamic)

    def setting_of(self, name: str) -> str:
        """What a cell shares with the cells that differ from it in seeds alone."""
        return repr({key: value for key, value in self.plan.cells[name].overrides.items() if key != "seeds"})

    def data_of(self, group: Group) -> Path:
        """Where the cells of a group have their data: one folder for each way to read it."""
        data = sorted(item for item in group.config.items() if item[0].startswith("data."))
        return self.path / "data" / hashlib.sha256(repr(data).encode()).hexdigest()[:12]

    def steps(self, group: Group) -> int:
        """How many steps a member of a group takes; 1 where nothing is trained step by step."""
        return group.config.get("train.steps", 1)


def read_result(cell: Path) -> dict | None:
    """A cell's result, or None where it is not there or is not whole."""
    try:
        return json.loads((cell / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def is_sweep(path: Path) -> bool:
    """Whether the folder is a sweep's."""
    return (path / "plan.json").exists()


def open_sweep(experiment: Experiment, request: Request) -> Sweep:
    """The sweep as it was planned. Raises UserError where there is none."""
    config, plan = read_config(request.workdir), read_plan(request.workdir / "plan.json")
    if config is None or plan is None:
        raise UserError(f"{request.workdir}: no sweep here. Start one with --mode=sweep --config=….")
    return Sweep(request.workdir, experiment, config, plan)


def make_plan(experiment: Experiment, request: Request) -> Sweep:
    """Resolve and check every cell, and write the plan with those that it did not have yet.

    Without a config, the plan as it is.
    """
    if request.space is None or request.configure is None:
        return open_sweep(experiment, request)
    config, path = request.config, request.workdir
    _require_settings(config, experiment)
    code = code_version(ROOT, CODE)
    cells = resolve(request.space(), request.configure, experiment.identify, code)
    with hold(path):
        stored, plan = read_config(path), read_plan(path / "plan.json")
        if stored is not None and plan is None:
            raise UserError(f"{path}: holds a run, not a sweep. Choose another --workdir.")
        if stored is not None:
            refuse_other(path, without_settings(stored), without_settings(config))
        if plan is not None and plan.code != code:
            cells = _of_other_code(Sweep(path, experiment, config, plan), cells, code)

        def choose(cell, count):
            return _how(experiment, config, nested(cell.config), count)

        plan = extend(plan, cells, code, experiment.dynamic, choose)
        write_whole(path / "config.json", to_json(config))
        write_whole(path / "plan.json", plan_to_json(plan))
    return Sweep(path, experiment, config, plan)


def work(sweep: Sweep) -> None:
    """Do what is missing and what no other process does at this moment.

    A cell that fails is put down in its error.txt and stops nothing else. Raises Interrupted where asked to stop.
    """
    steps = sum(sweep.steps(group) * len(wave) for group, wave in _missing(sweep))
    with interruptible() as is_interrupted, Bar(steps, 0) as bar:
        for group in sweep.plan.groups:
            _work_on(sweep, group, bar, is_interrupted)


def describe_plan(sweep: Sweep) -> str:
    """A line a group: its settings, how it runs, what is done, and an estimate of the rest from one timed step."""
    from tabulate import tabulate

    rows, total = [], 0.0
    for group in sweep.plan.groups:
        names = [name for wave in group.waves for name in wave]
        missing = [name for name in names if not sweep.is_done(name)]
        seconds, size = _timed_step(sweep, group) if missing else (0.0, 0)
        seeds = len(sweep.config_of(names[0]).seeds)
        total += (left := seconds * sweep.steps(group) * seeds * len(missing))
        statics = {
            key for name in names for key in sweep.plan.cells[name].overrides if key not in sweep.experiment.dynamic
        }
        shown = sweep.plan.cells[names[0]].overrides
        rows.append(
            {
                "group": ", ".join(f"{key}={shown[key]}" for key in sorted(statics)) or "one program",
                "cells": len(names),
                "done": len(names) - len(missing),
                "how": f"{group.how}, {len(group.waves)} waves" if group.how == VMAP else group.how,
                "memory a member": f"{size / 2**20:,.0f} MiB",
                "left": f"{left / 60:,.1f} min",
            }
        )
    table = tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)
    return f"{table}\n\n{len(sweep.plan.cells)} cells; about {total / 60:,.1f} minutes of training left, one at a time"


def failures(sweep: Sweep) -> dict[str, str]:
    """The cells that failed, with the last line of what they failed with."""
    texts = {name: sweep.cell(name) / "error.txt" for name in sweep.plan.cells if not sweep.is_done(name)}
    return {name: path.read_text().strip().splitlines()[-1] for name, path in texts.items() if path.exists()}


def _work_on(sweep: Sweep, group: Group, bar: Bar, is_interrupted: Callable[[], bool]) -> None:
    """Every wave of a group that is missing: each as it can be claimed, or all in step where they are ranked."""
    together: Together | None = None
    waves = dict(enumerate(group.waves))
    shares = [list(waves)] if sweep.config.population.halving else [[index] for index in waves]
    for share in shares:
        if all(sweep.is_done(name) for index in share for name in waves[index]):
            continue
        with contextlib.ExitStack() as stack:
            try:
                homes = {index: sweep.path / "waves" / f"{group.name}-{index}" for index in share}
                for home in homes.values():
                    stack.enter_context(hold(home))
                together = together or _together(sweep, group)
                _run(sweep, group, together, {homes[i]: waves[i] for i in share}, bar, is_interrupted)
            except Busy:
                continue
            except Interrupted:
                raise
            except Exception as error:
                _put_down(sweep, [name for index in share for name in waves[index]], error)


def _run(
    sweep: Sweep,
    group: Group,
    together: Together,
    waves: dict[Path, list[str]],
    bar: Bar,
    is_interrupted: Callable[[], bool],
) -> None:
    """Train waves from rung to rung, and finish the cells that reach the end."""
    steps = sweep.steps(group)
    rungs = [step for step in sweep.config.population.rungs if step < steps]
    for until in (*rungs, steps):
        for home, names in waves.items():
            _train(sweep, together, home, names, until, bar, is_interrupted)
        if until < steps:
            _drop_worst(sweep, [name for names in waves.values() for name in names], until)


def _train(
    sweep: Sweep,
    together: Together,
    home: Path,
    names: Sequence[str],
    until: int,
    bar: Bar,
    is_interrupted: Callable[[], bool],
) -> None:
    """Train a wave's unfinished cells to a step; write the results of those that end there."""
    is_whole = any((home / "checkpoints").glob("[0-9]*"))  # checkpoints are of all members, finished or not
    missing = [name for name in names if not sweep.is_done(name)]
    if not missing:
        return
    chosen = list(names) if is_whole else missing
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(_open_cell(sweep, name, 1 / len(chosen))) for name in chosen]
        configs = [sweep.config_of(name) for name in chosen]
        diverged = train_wave(Wave(configs, runs, home), together, until, bar, is_interrupted)
        ended = until == sweep.steps(sweep.groups[names[0]])
        batches = [range(len(chosen))] if together.trainer is None else [[place] for place in range(len(chosen))]
        for places in batches if ended else []:
            kept = [place for place in places if diverged[place] is None and chosen[place] in missing]
            metrics = together.finish([configs[i] for i in kept], [runs[i] for i in kept]) if kept else []
            for place, found in zip(kept, metrics, strict=True):
                _write_result(runs[place], finished(configs[place], found))
            bar.skip(len(kept) if together.trainer is None else 0)
        for place, step in enumerate(diverged):
            if step is not None:
                _write_result(runs[place], {**finished(configs[place], {}), "status": "diverged", "step": step})
    if len(names) > 1:
        shutil.rmtree(home / "checkpoints", ignore_errors=True)


def _drop_worst(sweep: Sweep, names: Sequence[str], step: int) -> None:
    """Write results of the settings that end at a rung: all seeds of a setting together, the worst share of them."""
    by = sweep.config.train.best_by
    alive = [name for name in names if not sweep.is_done(name)]
    scores: dict[str, list[float]] = {}
    for name in alive:
        lines = [line for line in Run(sweep.cell(name), 0.0).metrics() if line["step"] == step and by in line]
        if not lines:
            raise UserError(
                f"config.population.rungs: {by} is not measured at step {step}: choose multiples of "
                "config.train.evaluate_every."
            )
        values = [line[by] * (-1 if by.endswith("loss") else 1) for line in lines]
        scores.setdefault(sweep.setting_of(name), []).extend(values)
    ranked = sorted(scores, key=lambda setting: sum(scores[setting]) / len(scores[setting]))
    worst = set(ranked[: int(len(ranked) * sweep.config.population.halving)])
    for name in alive:
        if sweep.setting_of(name) in worst:
            with _open_cell(sweep, name) as run:
                last = [line for line in run.metrics() if line["step"] == step][-1]
                result = finished(sweep.config_of(name), {"step": step, "last": last})
                _write_result(run, {**result, "status": "dropped"})


def _together(sweep: Sweep, group: Group) -> Together:
    first = sweep.config_of(group.waves[0][0])
    return sweep.experiment.together(first, sweep.data_of(group), group.how)


@contextlib.contextmanager
def _open_cell(sweep: Sweep, name: str, share: float = 1.0) -> Iterator[Run]:
    """A cell's run folder, with its config, and a link to the data that it shares."""
    path = sweep.cell(name)
    path.mkdir(parents=True, exist_ok=True)
    data = sweep.data_of(sweep.groups[name])
    if data.exists() and not (path / "data").is_symlink():
        (path / "data").symlink_to(os.path.relpath(data, path))
    if not (path / "config.json").exists():
        (path / "config.json").write_text(to_json(sweep.config_of(name)), encoding="utf-8")
    run = Run(path, time.perf_counter(), share=share)
    try:
        yield run
    finally:
        run.close()


def _write_result(run: Run, result: dict) -> None:
    (run.path / "error.txt").unlink(missing_ok=True)
    write_result(run.path, result | {"seconds": round(run.seconds(), 2)})


def _put_down(sweep: Sweep, names: Sequence[str], error: Exception) -> None:
    """Say that cells failed, and why, in each one's folder."""
    told = str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error))
    failed = [name for name in names if not sweep.is_done(name)]
    for name in failed:
        sweep.cell(name).mkdir(parents=True, exist_ok=True)
        write_whole(sweep.cell(name) / "error.txt", told.strip() + "\n")
    tell(f"{', '.join(failed)}: failed: {told.strip().splitlines()[-1]}")


def _missing(sweep: Sweep) -> Iterator[tuple[Group, list[str]]]:
    """The waves with something to do, and what."""
    for group in sweep.plan.groups:
        for wave in group.waves:
            names = [name for name in wave if not sweep.is_done(name)]
            if names:
                yield group, names


def _of_other_code(sweep: Sweep, cells: Sequence[Cell], code: str) -> list[Cell]:
    """The cells, those that other code made by their names there. Raises UserError unless that was asked for."""
    done = sum(map(sweep.is_done, sweep.plan.cells))
    if not sweep.config.sweep.any_code:
        raise UserError(
            f"{sweep.path}: its {len(sweep.plan.cells)} cells, {done} of them done, were made by other code "
            f"({sweep.plan.code}; this is {code}). Choose another --workdir, or mix them: --config.sweep.any_code=True."
        )
    by_config = {name.partition("-")[0]: name for name in sweep.plan.cells}
    return [cell._replace(name=by_config.get(cell.name.partition("-")[0], cell.name)) for cell in cells]


def _require_settings(config: ConfigDict, experiment: Experiment) -> None:
    missing = [name for name in NOT_OF_A_CELL if name not in config]
    if missing:
        raise UserError(f"config has no section {missing[0]!r}, which a sweep needs: attention_jax/sweeps/settings.py.")
    require_dynamic(config.population.dynamic, experiment.dynamic)
    choices = (("sweep.engine", ENGINES), ("sweep.match", ("", "flops")), ("population.how", ("auto", LOOP, VMAP)))
    for key, known in choices:
        section, _, name = key.partition(".")
        if config[section][name] not in known:
            raise UserError(f"config.{key}={config[section][name]!r}: choose one of {', '.join(map(repr, known))}.")
    if not 0 <= config.population.halving < 1 or bool(config.population.halving) != bool(config.population.rungs):
        raise UserError(
            f"config.population: halving={config.population.halving} needs 0 or more and less than 1, and "
            f"rungs={config.population.rungs} where it is more than 0."
        )


def _how(experiment: Experiment, config: ConfigDict, cell: ConfigDict, count: int) -> tuple[str, int]:
    """How a new group's cells run, and how many at once."""
    how, most = config.population.how, config.population.most
    if how == "auto":
        how = experiment.on_cpu if jax.default_backend() == "cpu" else VMAP
    if how == LOOP:
        return how, 1
    room = most or _room(experiment, cell)
    if room < count:
        tell(f"{count} cells share a program: waves of {room}, which is what {'was asked' if most else 'memory takes'}")
    return how, max(min(room, count), 1)


def _timed_step(sweep: Sweep, group: Group) -> tuple[float, int]:
    """Seconds of a step on zeros, compiled, and the bytes that it needs."""
    description = sweep.experiment.describe(sweep.config_of(group.waves[0][0]))
    program = jax.jit(description.step)
    arguments = jax.tree.map(_zeros, description.arguments)
    jax.block_until_ready(program(*arguments))
    started = time.perf_counter()
    jax.block_until_ready(program(*arguments))
    return time.perf_counter() - started, cost(description.step, *description.arguments).bytes


def _zeros(leaf):
    """An array of a shape; a random key is the first."""
    if isinstance(leaf, jax.ShapeDtypeStruct) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), leaf.shape)
    return jax.numpy.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf


def _room(experiment: Experiment, cell: ConfigDict) -> int:
    """How many cells a device's memory takes side by side, with a fifth of it left free."""
    description = experiment.describe(cell)
    needed = cost(description.step, *description.arguments).bytes * len(cell.seeds)
    return max(int(0.8 * free_memory() / needed), 1)
