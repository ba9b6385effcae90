"""Doing a sweep's work: whatever is missing and no other process does, whichever engine started this one."""

import contextlib
import json
import math
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.runs.experiment import Together, finished
from attention_jax.runs.folder import Busy, Run, hold, to_json, write_result, write_whole
from attention_jax.runs.interrupt import Interrupted, interruptible
from attention_jax.runs.population import Wave, train_wave
from attention_jax.runs.sweeps import Sweep, current_code
from attention_jax.runs.training import Bar, tell
from attention_jax.sweeps.plan import Group


def work(sweep: Sweep) -> None:
    """Do what is missing and what no other process does at this moment.

    Groups that no other process works on come first: a group's program is compiled by every process that joins it.

    A cell that fails is put down in its error.txt and stops nothing else. Raises Interrupted where asked to stop, and
    UserError where the plan is of other code.
    """
    if sweep.plan.code != (code := current_code()) and not sweep.config.sweep.any_code:
        raise UserError(
            f"{sweep.path}: planned with other code ({sweep.plan.code}; this is {code}). Start it with --mode=sweep "
            "--config=…, which says what there is to do."
        )
    steps = sum(sweep.steps(group) * len(wave) for group, wave in _missing(sweep))
    with interruptible() as is_interrupted, Bar(steps, 0) as bar:
        for group in sweep.plan.groups:
            with contextlib.suppress(Busy), hold(sweep.path / "waves" / group.name):
                _work_on(sweep, group, bar, is_interrupted)
        for group in sweep.plan.groups:
            _work_on(sweep, group, bar, is_interrupted)


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
                matmul = group.config["precision.matmul"]
                stack.enter_context(jax.default_matmul_precision(None if matmul == "default" else matmul))
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
    missing = [name for name in names if not sweep.is_done(name)]
    if not missing:
        return
    chosen = _members(home, missing)
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(_open_cell(sweep, name, 1 / len(chosen))) for name in chosen]
        configs = [sweep.config_of(name) for name in chosen]
        diverged = train_wave(Wave(configs, runs, home), together, until, bar, is_interrupted)
        cells = [cell for cell in zip(configs, runs, diverged, strict=True) if cell[1].path.name in missing]
        for config, run, step in cells:
            if step is not None:
                _write_result(run, {**finished(config, {}), "status": "diverged", "step": step})
        if until == sweep.steps(sweep.groups[names[0]]):
            _finish(sweep, together, [(config, run) for config, run, step in cells if step is None], bar)
    if (home / "checkpoints").exists():  # every cell has its own now
        shutil.rmtree((home / "checkpoints").replace(home / "done"))


def _members(home: Path, missing: list[str]) -> list[str]:
    """The cells that train together: those that the wave's checkpoints are of, or those with something left to do."""
    path = home / "members.json"
    shutil.rmtree(home / "done", ignore_errors=True)
    if any((home / "checkpoints").glob("[0-9]*")) and path.exists():
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
            _put_down(sweep, [run.path.name for run in runs], error)
            continue
        for config, run, found in zip(configs, runs, metrics, strict=True):
            _write_result(run, finished(config, found))
        bar.skip(len(batch) if together.trainer is None else 0)


def _drop_worst(sweep: Sweep, names: Sequence[str], step: int) -> None:
    """Write results of the settings that end at a rung: all seeds of a setting together, the worst share of them.

    Every setting that reached the rung is ranked, whatever became of it since, so that a restart drops the same.
    """
    by = sweep.config.train.best_by
    lines = {name: [x for x in Run(sweep.cell(name), 0.0).metrics() if x["step"] == step and by in x] for name in names}
    if not any(lines.values()):
        raise UserError(
            f"config.population.rungs: {by} is not measured at step {step}: choose multiples of "
            "config.train.evaluate_every."
        )
    scores: dict[str, list[float]] = {}
    for name, found in lines.items():
        sign = -1 if by.endswith("loss") else 1
        values = [-math.inf if line[by] is None else sign * line[by] for line in found]
        scores.setdefault(sweep.setting_of(name), []).extend(values)
    ranked = sorted((sum(values) / len(values), setting) for setting, values in scores.items() if values)
    worst = {setting for _, setting in ranked[: int(len(ranked) * sweep.config.population.halving)]}
    if not worst:
        tell(f"step {step}: {len(ranked)} settings share this program, too few to drop one")
    for name in names:
        if sweep.setting_of(name) in worst and lines[name] and not sweep.is_done(name):
            with _open_cell(sweep, name) as run:
                result = finished(sweep.config_of(name), {"step": step, "last": lines[name][-1]})
                _write_result(run, {**result, "status": "dropped"})


def _together(sweep: Sweep, group: Group) -> Together:
    """What a group's cells share; its data is imported by one process, for which others wait."""
    first = sweep.config_of(group.waves[0][0])
    with hold(sweep.data_of(group).parent, wait=True):
        return sweep.experiment.together(first, sweep.data_of(group), group.how)


@contextlib.contextmanager
def _open_cell(sweep: Sweep, name: str, share: float = 1.0) -> Iterator[Run]:
    """A cell's run folder, with its config, and a link to the data that it shares."""
    path = sweep.cell(name)
    path.mkdir(parents=True, exist_ok=True)
    data = sweep.data_of(sweep.groups[name])
    if data.exists() and not (path / "data").is_symlink():
        (path / "data").symlink_to(os.path.relpath(data, path))
    (path / "error.txt").unlink(missing_ok=True)
    (path / "config.json").write_text(to_json(sweep.config_of(name)), encoding="utf-8")
    run = Run(path, time.perf_counter(), share=share)
    try:
        yield run
    finally:
        run.close()


def _write_result(run: Run, result: dict) -> None:
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
