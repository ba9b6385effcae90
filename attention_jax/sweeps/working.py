"""Doing a sweep's work: whatever is missing and no other process does, whichever engine started this one."""

import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from attention_jax import hosts, stopping, stores
from attention_jax.errors import UserError
from attention_jax.evaluation.comparison import mean_of
from attention_jax.evaluation.metrics import metric
from attention_jax.runs.experiment import Together, finished
from attention_jax.runs.folder import Busy, Run, hold, own_folder, to_json, write_result, write_whole
from attention_jax.runs.training import Bar, tell
from attention_jax.sweeps.folder import Sweep, changed_since, read_result
from attention_jax.sweeps.plan import Program
from attention_jax.sweeps.population import Wave, train_wave
from attention_jax.training.storage import delete, remove, steps_in


class Rungs(NamedTuple):
    """Steps at which the cells of all programs stop together, and what writes the results of those that it drops."""

    steps: Sequence[int]
    drop: Callable[[Sweep, Sequence[str], int], None]


def work(sweep: Sweep, rungs: Rungs | None = None) -> None:
    """Do what is missing and what no other process does at this moment.

    Programs that no other process works on come first: every process that joins one compiles it again. Where no rungs
    are given, they are those of `config.population.across`.

    A cell that fails is put down in its error.txt and stops nothing else. Raises Interrupted where asked to stop, and
    UserError where the plan is of other code.
    """
    if not sweep.config.sweep.any_code and (changed := changed_since(sweep)):
        raise UserError(
            f"{sweep.path}: was planned with other code; {changed}. Start it with --mode=sweep --config=…, which says "
            "what there is to do."
        )
    steps = sum(sweep.steps(program) * len(wave) for program, wave in _missing(sweep))
    population = sweep.config.population
    rungs = rungs or Rungs(population.rungs if population.across else (), drop_worst)
    with Bar(steps, 0) as bar:
        for rung in rungs.steps:
            _climb(sweep, rung, rungs.drop, bar)
        for program in sweep.plan.programs:
            with contextlib.suppress(Busy), hold(sweep.path / "waves" / program.name):
                _work_on(sweep, program, None, bar)
        for program in sweep.plan.programs:
            _work_on(sweep, program, None, bar)


def _climb(sweep: Sweep, rung: int, drop: Callable[[Sweep, Sequence[str], int], None], bar: Bar) -> None:
    """Bring every program's cells to a rung, whoever trains them, and rank them all together."""
    programs = [program for program in sweep.plan.programs if rung < sweep.steps(program)]
    for wait in (False, True):  # first what nobody works on; then wait for what others do
        for program in programs:
            _work_on(sweep, program, rung, bar, wait)
    with hold(sweep.path / "waves" / f"rung-{rung}", True):
        names = [name for program in programs for wave in program.waves for name in wave]
        drop(sweep, names, rung)


def _work_on(sweep: Sweep, program: Program, rung: int | None, bar: Bar, wait: bool = False) -> None:
    """Do each missing wave of a program that can be claimed, to a rung or to the end.

    Where the settings of a program are ranked by themselves, its waves go in step.
    """
    together: Together | None = None
    waves, population = dict(enumerate(program.waves)), sweep.config.population
    in_step = population.halving and not population.across
    shares = [list(waves)] if in_step else [[index] for index in waves]
    for share in shares:
        stopping.poll_alone()
        with contextlib.ExitStack() as stack:
            try:
                homes = {index: sweep.path / "waves" / f"{program.name}-{index}" for index in share}
                for home in homes.values():
                    stack.enter_context(hold(home, wait))
                if all(_is_there(sweep, name, rung) for index in share for name in waves[index]):
                    continue
                matmul = program.config["precision.matmul"]
                stack.enter_context(jax.default_matmul_precision(None if matmul == "default" else matmul))
                together = together or _together(sweep, program)
                held = {homes[i]: waves[i] for i in share}
                if rung is None:
                    _run(sweep, program, together, held, bar)
                else:
                    _train_all(sweep, together, held, rung, bar)
            except Busy:
                continue
            except Exception as error:
                _require_common(error)
                _put_down(sweep, [name for index in share for name in waves[index]], error)


def _is_there(sweep: Sweep, name: str, rung: int | None) -> bool:
    """Whether a cell is done, or every seed of it has reached a rung."""
    return hosts.by_first(lambda: sweep.is_done(name) or (rung is not None and _has_reached(sweep, name, rung)))


def _is_done(sweep: Sweep, name: str) -> bool:
    """Whether a cell is done, as all hosts see it."""
    return hosts.by_first(lambda: sweep.is_done(name))


def _has_reached(sweep: Sweep, name: str, rung: int) -> bool:
    lines = Run(sweep.cell(name), 0.0).metrics()
    return {*sweep.flat[name]["seeds"]} == {line["seed"] for line in lines if line["step"] >= rung}


def _run(
    sweep: Sweep,
    program: Program,
    together: Together,
    waves: dict[Path, list[str]],
    bar: Bar,
) -> None:
    """Train waves to the end, from rung to rung where they are ranked by themselves; finish the cells that reach it."""
    steps, population = sweep.steps(program), sweep.config.population
    for rung in () if population.across else population.rungs:
        if rung < steps:
            _train_all(sweep, together, waves, rung, bar)
            reached = [name for names in waves.values() for name in names]
            drop_worst(sweep, reached, rung)
    _train_all(sweep, together, waves, steps, bar)


def _train_all(
    sweep: Sweep,
    together: Together,
    waves: dict[Path, list[str]],
    until: int,
    bar: Bar,
) -> None:
    for home, names in waves.items():
        _train(sweep, together, home, names, until, bar)


def _train(
    sweep: Sweep,
    together: Together,
    home: Path,
    names: Sequence[str],
    until: int,
    bar: Bar,
) -> None:
    """Train a wave's unfinished cells to a step; write the results of those that end there."""
    missing = [name for name in names if not _is_done(sweep, name)]
    if not missing:
        return
    chosen = hosts.by_first(lambda: _training_together(home, missing))
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(_open_cell(sweep, name, 1 / len(chosen))) for name in chosen]
        configs = [sweep.config_of(name) for name in chosen]
        diverged = train_wave(Wave(configs, runs, home), together, until, bar)
        cells = [cell for cell in zip(configs, runs, diverged, strict=True) if cell[1].path.name in missing]
        for config, run, step in cells:
            if step is not None:
                _write_result(run, {**finished(config, {}), "status": "diverged", "step": step})
        if until == sweep.steps(sweep.programs[names[0]]):
            _finish(sweep, together, [(config, run) for config, run, step in cells if step is None], bar)
    if hosts.is_first() and steps_in(home / "checkpoints"):  # every cell has its own now
        remove(stores.there(home / "checkpoints"))


def _training_together(home: Path, missing: list[str]) -> list[str]:
    """The cells that train together: those that the wave's checkpoints are of, or those with something left to do."""
    path = home / "members.json"
    delete(home / "removed-checkpoints")
    if steps_in(home / "checkpoints") and path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    write_whole(path, json.dumps(missing))
    return missing


def _finish(sweep: Sweep, together: Together, cells: Sequence[tuple[ConfigDict, Run]], bar: Bar) -> None:
    """Measure trained cells and write their results, each for itself where it was trained."""
    for batch in [cells] if together.trainer is None else [[cell] for cell in cells]:
        configs, runs = [config for config, _ in batch], [run for _, run in batch]
        try:
            metrics = together.finish(configs, runs) if batch else []
        except Exception as error:
            _require_common(error)
            _put_down(sweep, [run.path.name for run in runs], error)
            continue
        for config, run, found in zip(configs, runs, metrics, strict=True):
            _write_result(run, finished(config, found, run.path))
        bar.skip(len(batch) if together.trainer is None else 0)


def drop_worst(sweep: Sweep, names: Sequence[str], step: int) -> None:
    """Write results of the settings that are dropped at a rung: the worst share of each group (`config.sweep.within`).

    All seeds of a setting end together. Every setting that reached the rung is ranked, whatever became of it since, so
    that a restart drops the same; what an earlier rung dropped has not reached it. Raises UserError where nothing was
    measured there.
    """
    for name, last in hosts.by_first(lambda: _worst(sweep, names, step)):
        drop_cell(sweep, name, step, last)


def drop_cell(sweep: Sweep, name: str, step: int, last: Mapping[str, Any]) -> None:
    """Write the result of a cell that goes no further than a rung; `last` is the line that it was dropped by."""
    with _open_cell(sweep, name) as run:
        result = finished(sweep.config_of(name), {"step": step, "last": last, "seconds": last["seconds"]})
        _write_result(run, {**result, "status": "dropped"})


def _worst(sweep: Sweep, names: Sequence[str], step: int) -> list[tuple[str, dict[str, Any]]]:
    """The cells that are dropped at a rung and have no result yet, each with the line that it was ranked by."""
    by, names = sweep.config.train.best_by, [name for name in names if not _was_dropped(sweep, name, step)]
    lines = {name: [x for x in Run(sweep.cell(name), 0.0).metrics() if x["step"] == step and by in x] for name in names}
    if not any(lines.values()):
        raise UserError(
            f"config.population.rungs: {by} is not measured at step {step}: choose multiples of "
            "config.train.evaluate_every."
        )
    if behind := [name for name in names if not (sweep.has_ended(name) or _has_reached(sweep, name, step))]:
        tell(f"step {step}: {len(behind)} cells have not reached it: nothing is dropped")
        return []
    worst: set[str] = set()
    for group in sweep.agreeing(names):
        ranked = sorted((_height(sweep, setting, lines), setting) for setting in sweep.settings_in(group))
        dropped = ranked[: int(len(ranked) * sweep.config.population.halving)]
        worst.update(name for _, setting in dropped for name in setting)
    if not worst:
        tell(f"step {step}: too few settings are ranked together to drop one")
    return [(name, lines[name][-1]) for name in names if name in worst and lines[name] and not sweep.is_done(name)]


def _was_dropped(sweep: Sweep, name: str, before: int) -> bool:
    """Whether a cell was dropped at a rung before a step."""
    result = read_result(sweep.cell(name)) or {}
    return result.get("status") == "dropped" and result["step"] < before


def _height(sweep: Sweep, setting: Sequence[str], lines: Mapping[str, list[dict[str, Any]]]) -> float:
    """How high a setting stands at a rung: by its mean over the seeds that choose; −∞ where one diverged or failed."""
    by, every = sweep.config.train.best_by, sweep.seeds_of(setting)
    reached = {line["seed"]: line[by] for name in setting for line in lines[name]}
    return metric(by).height(mean_of(by, [reached.get(seed) for seed in sweep.choosers(setting) or every]))


def _together(sweep: Sweep, program: Program) -> Together:
    """What a program's cells share; their data is imported by one process, for which others wait."""
    kept = {} if sweep.kept is None else sweep.kept
    if program.name not in kept:
        first = sweep.config_of(program.waves[0][0])
        with hold(sweep.data_of(program).parent, wait=True):
            kept[program.name] = sweep.experiment.together(
                sweep.experiment.open(first, sweep.data_of(program)), program.how
            )
    return kept[program.name]


@contextlib.contextmanager
def _open_cell(sweep: Sweep, name: str, share: float = 1.0) -> Iterator[Run]:
    """A cell's run folder, with its config, and a link to the data that it shares."""
    path = sweep.cell(name)
    hosts.by_first(lambda: _prepare(sweep, name))
    with own_folder(path) as own:
        run = Run(path, time.perf_counter(), share=share, own=own)
        try:
            yield run
        finally:
            run.close()


def _prepare(sweep: Sweep, name: str) -> None:
    path = sweep.cell(name)
    path.mkdir(parents=True, exist_ok=True)
    data = sweep.data_of(sweep.programs[name])
    if data.exists() and not os.path.lexists(path / "data"):  # where links were copied as folders, it has its own
        (path / "data").symlink_to(os.path.relpath(data, path))
    (path / "error.txt").unlink(missing_ok=True)
    write_whole(path / "config.json", to_json(sweep.config_of(name)))


def _write_result(run: Run, result: dict) -> None:
    write_result(run.own, {"seconds": round(run.seconds(), 2)} | result)


def _require_common(error: Exception) -> None:
    """End all hosts where an error may be of one of them alone: the others would wait for what it does next."""
    if not isinstance(error, UserError):
        hosts.explained(error)


def _put_down(sweep: Sweep, names: Sequence[str], error: Exception) -> None:
    """Say that cells failed, and why, in each one's folder."""
    told = str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error))
    failed = [name for name in names if not _is_done(sweep, name)]
    for name in failed if hosts.is_first() else ():
        sweep.cell(name).mkdir(parents=True, exist_ok=True)
        write_whole(sweep.cell(name) / "error.txt", told.strip() + "\n")
    tell(f"{', '.join(failed)}: failed: {told.strip().splitlines()[-1]}")


def _missing(sweep: Sweep) -> Iterator[tuple[Program, list[str]]]:
    """The waves with something to do, and what."""
    for program in sweep.plan.programs:
        for wave in program.waves:
            names = [name for name in wave if not _is_done(sweep, name)]
            if names:
                yield program, names
