"""A search: a sweep whose cells a study asks for, a batch at a time.

Nothing but the folder is kept. Started again, the same study asks for the same trials, finds those that are done, and
goes on after them.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from attention_jax import hosts
from attention_jax.errors import UserError
from attention_jax.evaluation.comparison import mean_of
from attention_jax.evaluation.metrics import metric, require_direction
from attention_jax.runs.config import nested
from attention_jax.runs.experiment import Experiment, Request, Together
from attention_jax.runs.folder import Run
from attention_jax.sweeps.cells import VARIANT, resolve
from attention_jax.sweeps.folder import Sweep, is_search, is_sweep
from attention_jax.sweeps.planning import make_plan
from attention_jax.sweeps.sharing import share_work
from attention_jax.sweeps.space import Choice, Draw, Overrides, Uniform
from attention_jax.sweeps.study import Study, require_known
from attention_jax.sweeps.trials import best_of, cells_of, nothing_asked, read_asked, require_ended, tried, write_asked
from attention_jax.sweeps.working import Rungs, drop_cell

TIMETABLE = ("train.steps", "train.evaluate_every")  # which a pruner needs to be the same for all trials


def search(experiment: Experiment, request: Request) -> Sweep:
    """Ask for trials, train and tell them, until there are `config.search.trials`; then train the best with new seeds.

    Raises UserError for what cannot be searched, and where a cell failed: the same command then tries it again.
    """
    config, path = request.config, request.workdir
    objective, space = _require_searchable(experiment, request), _space(request)
    settings, more_is_better = config.search, bool(metric(objective).more_is_better)
    study = Study(space, settings.sampler, settings.pruner, settings.seed, more_is_better)
    asked, plan = nothing_asked(config, space), functools.partial(_planned, experiment, request, {})
    while (first := len(asked.trials)) < settings.trials:
        batch = study.ask(min(settings.batch, settings.trials - first))
        asked = asked._replace(trials=[*asked.trials, *batch])
        write_asked(path, asked)
        sweep = plan(_cells(asked.trials, range(settings.choosing_seeds)))
        share_work(sweep, _rungs(sweep, study, batch, first))
        for number, trial in enumerate(tried(sweep, batch, objective), start=first):
            study.tell(number, trial.value)
    every = _cells(asked.trials, range(settings.choosing_seeds))
    winner = best_of(tried(plan(every), asked.trials, objective), objective)
    sweep = plan([*every, *_cells([winner.overrides], reporting_seeds(config))])
    share_work(sweep)
    return sweep


def reporting_seeds(config: ConfigDict) -> range:
    """The seeds that report the winner: none of them chose it."""
    first = config.search.choosing_seeds
    return range(first, first + config.search.reporting_seeds)


def objective_of(config: ConfigDict, experiment: Experiment) -> str:
    """The metric that trials are told by: the first of `config.sweep.metric`, or the experiment's own."""
    asked = [name.strip() for name in config.sweep.metric.split(",") if name.strip()]
    return asked[0] if asked else experiment.metric(config)


def _planned(experiment: Experiment, request: Request, kept: dict[str, Together], cells: list[Overrides]) -> Sweep:
    """The search's sweep, of some cells and no others; `kept` is what its programs share from batch to batch.

    A batch that a kill left undone waits for its turn: what it is told of comes first.
    """
    sweep = make_plan(experiment, request._replace(space=lambda: cells))
    planned = sweep.plan.cells.items()
    names = {name for own in cells for name, cell in planned if own.items() <= cell.overrides.items()}
    every = sweep.plan.programs
    waves = [[[name for name in wave if name in names] for wave in program.waves] for program in every]  # as numbered
    programs = [program._replace(waves=own) for program, own in zip(every, waves, strict=True)]
    plan = sweep.plan._replace(cells={name: cell for name, cell in planned if name in names}, programs=programs)
    return dataclasses.replace(sweep, plan=plan, kept=kept)


def _cells(trials: Sequence[Overrides], seeds: Sequence[int]) -> list[Overrides]:
    return [{**overrides, "seeds": (seed,)} for overrides in trials for seed in seeds]


def _rungs(sweep: Sweep, study: Study, batch: Sequence[Overrides], first: int) -> Rungs | None:
    """Every evaluation but the last, where the study's pruner drops trials of a batch; None without a pruner."""
    config = sweep.config
    if config.search.pruner == "none":
        return None
    every = config.train.evaluate_every
    names = {
        first + index: cells_of(sweep, own, range(config.search.choosing_seeds)) for index, own in enumerate(batch)
    }
    return Rungs(range(every, config.train.steps, every), functools.partial(_prune, study, names))


def _prune(study: Study, trials: Mapping[int, Sequence[str]], sweep: Sweep, names: Sequence[str], step: int) -> None:
    """Write the results of a batch's trials that the pruner drops at a rung; it is asked of each that came so far.

    It judges by the means over seeds of `config.train.best_by`, with its sign changed where the objective is better the
    other way. Raises UserError where a cell failed before.
    """
    del names  # of earlier batches too
    by, every = sweep.config.train.best_by, sweep.config.train.evaluate_every
    objective = metric(objective_of(sweep.config, sweep.experiment))
    sign = 1 if metric(by).more_is_better == objective.more_is_better else -1
    found = {name: _line(sweep, name, step, by) for cells in trials.values() for name in cells}
    require_ended(sweep, [name for name, line in found.items() if line is None])
    lines = {name: line for name, line in found.items() if line is not None}
    for number, cells in trials.items():
        if not lines.keys() >= {*cells}:
            continue  # dropped before, or diverged
        value = mean_of(by, [lines[name][by] for name in cells])
        if study.prunes(number, step // every, math.nan if value is None else sign * value):
            for name in cells:
                if not sweep.is_done(name):
                    drop_cell(sweep, name, step, lines[name])


def _line(sweep: Sweep, name: str, step: int, by: str) -> dict[str, Any] | None:
    """What was measured of a cell at a step; None where it has not come so far."""
    return next((line for line in Run(sweep.cell(name), 0.0).metrics() if line["step"] == step and by in line), None)


def _space(request: Request) -> dict[str, Draw]:
    """What the config file's search() draws from, or, without a config, what the folder says."""
    if request.search is not None:
        return dict(request.search())
    before = read_asked(request.workdir)
    if before is None:
        raise UserError(f"{request.workdir}: no search here. Start one with --mode=search --config=….")
    if VARIANT in before.space:
        raise UserError(f"{request.workdir}: it draws variants, which a config file has: name it with --config=….")
    return before.space


def _require_searchable(experiment: Experiment, request: Request) -> str:
    """The metric that is searched for. Raises UserError for settings that do not go together, before anything runs."""
    config, path = request.config, request.workdir
    if "search" not in config:
        raise UserError("config has no section 'search', which a search needs: attention_jax/sweeps/settings.py.")
    require_known(config.search.sampler, config.search.pruner)
    for name in ("trials", "batch", "choosing_seeds", "reporting_seeds"):
        if config.search[name] < 1:
            raise UserError(f"config.search.{name}={config.search[name]}: needs 1 or more.")
    _require_alone(config)
    if is_sweep(path) and not is_search(path):
        raise UserError(f"{path}: holds a sweep, not a search. Choose another --workdir.")
    before = read_asked(path)
    if before is not None and len(before.trials) > config.search.trials:
        raise UserError(
            f"config.search.trials={config.search.trials}: {path} has {len(before.trials)} already: ask for as many or "
            "more, or choose another --workdir."
        )
    objective = objective_of(config, experiment)
    if objective.startswith("test."):
        raise UserError(
            f"config.sweep.metric={objective!r}: test figures choose nothing: search by a validation metric."
        )
    require_direction(objective, "config.sweep.metric" if config.sweep.metric else "config.train.best_by")
    _require_space(experiment, request, _space(request))
    return objective


def _require_alone(config: ConfigDict) -> None:
    """Raise UserError for settings of sweeps that a search does not have."""
    for key, plain in (("sweep.engine", "inline"), ("sweep.match", ""), ("population.halving", 0.0)):
        section, _, name = key.partition(".")
        if config[section][name] != plain:
            why = "its pruner is config.search.pruner" if name == "halving" else "it trains a batch in one process"
            why = "its trials have the budget of the config" if name == "match" else why
            raise UserError(f"config.{key}={config[section][name]!r}: is for sweeps; of a search, {why}: {plain!r}.")
    if not hosts.is_alone():
        raise UserError(f"config.distributed={config.distributed!r}: a search is of one process: set 'off'.")


def _require_space(experiment: Experiment, request: Request, space: Mapping[str, Draw]) -> None:
    """Raise UserError for a space that no config has: each end of a draw and each choice is checked by itself."""
    if not space:
        raise UserError("search: the space is empty: search() names no key.")
    for key, draw in space.items():
        if not isinstance(draw, (Uniform, Choice)):
            raise UserError(f"search: {key!r} has {draw!r}: draw it with uniform, log_uniform or choice.")
        if key == "seeds":
            raise UserError("search: 'seeds' are config.search.choosing_seeds and reporting_seeds.")
        if key in TIMETABLE and request.config.search.pruner != "none":
            raise UserError(f"search: {key!r} is drawn, and a pruner compares trials at the same steps: 'none'.")

    def check(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for flat in configs:
            experiment.check(nested(flat))
        return configs

    assert request.configure is not None
    ends = [{key: value} for key, draw in space.items() for value in _ends(draw)]
    found = resolve(ends, request.configure, lambda config: "", lambda: "", check)
    pruner = request.config.search.pruner
    if pruner != "none" and any(key not in found[0].config for key in TIMETABLE):
        what = f"{request.config.experiment} trains nothing step by step"
        raise UserError(f"config.search.pruner={pruner!r}: {what}: 'none'.")


def _ends(draw: Draw) -> Sequence[Any]:
    return draw.values if isinstance(draw, Choice) else (float(draw.low), float(draw.high))
