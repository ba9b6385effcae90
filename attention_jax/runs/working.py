"""Doing a sweep's work: whatever is missing and no other process does, whichever engine started this one."""

import contextlib
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attention_jax.errors import UserError
from attention_jax.runs.experiment import Together, finished
from attention_jax.runs.folder import Busy, Run, hold, to_json, write_result, write_whole
from attention_jax.runs.interrupt import Interrupted, interruptible
from attention_jax.runs.population import Wave, train_wave
from attention_jax.runs.sweeps import Sweep
from attention_jax.runs.training import Bar, tell
from attention_jax.sweeps.plan import Group


def work(sweep: Sweep) -> None:
    """Do what is missing and what no other process does at this moment.

    A cell that fails is put down in its error.txt and stops nothing else. Raises Interrupted where asked to stop.
    """
    steps = sum(sweep.steps(group) * len(wave) for group, wave in _missing(sweep))
    with interruptible() as is_interrupted, Bar(steps, 0) as bar:
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
