"""More seeds for a finished run: they are trained alone, and then join those that it has in a run beside it.

RUN/more/           the new seeds' own run while they train
RUN/more/joined/    the run of all seeds: checkpoints and metrics of both, then everything that is measured of them

The run stays what it was until that of all seeds is whole, and then becomes it (runs/taking.py). After a kill at any
moment the same command goes on, and any other finds the one run or the other.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from attention_jax.files import write_whole
from attention_jax.runs.experiment import Together
from attention_jax.runs.folder import Run, read_config, to_json, what_differs
from attention_jax.runs.taking import discard, joined_in
from attention_jax.runs.training import Member, open_checkpoints, train_run
from attention_jax.training.clock import Clock
from attention_jax.training.loop import Trainer
from attention_jax.training.progress import tell
from attention_jax.training.saved import BEST


def gain_seeds(config: ConfigDict, run: Run, together: Together, made: Mapping[str, Any]) -> Run:
    """Train the seeds that a finished run lacks; the run of all of `config.seeds`, trained and not yet measured.

    `made` is the code, device and versions of this process, which go beside those of earlier ones that trained them.
    Raises UserError where the loss is not finite, Interrupted where asked to stop; the run itself stays what it was.
    """
    extra = _train(config, run, together, made)
    joined = Run(joined_in(run.path), time.perf_counter())
    shutil.rmtree(joined.path, ignore_errors=True)  # of a kill: no result tells that it is whole
    joined.path.mkdir()
    write_whole(joined.path / "config.json", to_json(config))
    if together.trainer is not None:
        count = len(run.seeds_before)
        both = [_with_seeds(config, seeds) for seeds in (config.seeds[:count], config.seeds[count:])]
        _join(run, extra, joined, together.trainer, both)
    return Run(joined.path, time.perf_counter(), run.profile is not None)  # goes on from what was joined


def _train(config: ConfigDict, run: Run, together: Together, made: Mapping[str, Any]) -> Run:
    """The new seeds, trained in a folder of their own."""
    own, more = _with_seeds(config, config.seeds[len(run.seeds_before) :]), run.path / "more"
    begun = read_config(more)
    if begun is not None and (changed := what_differs(begun, own)):
        tell(f"{more}: other seeds were begun here ({', '.join(changed)} differ): they are given up")
    if begun is None or changed:
        discard(more)
    more.mkdir(exist_ok=True)
    write_whole(more / "config.json", to_json(own))
    extra = Run(more, time.perf_counter())
    extra.makers = [dict(made)]
    try:
        train_run(own, extra, together)
    finally:
        extra.close()
    return extra


def _with_seeds(config: ConfigDict, seeds: Sequence[int]) -> ConfigDict:
    own = ConfigDict(config.to_dict())
    own.seeds = tuple(seeds)
    return own.lock()


def _join(run: Run, extra: Run, joined: Run, trainer: Trainer, both: Sequence[ConfigDict]) -> None:
    """Write checkpoints of all seeds at every step of which both runs have one, with all their metrics beside.

    `both` are the configs of the run and of the extra one.
    """
    lines = run.metrics()
    result = run.result() or {}
    spent = max([line["seconds"] for line in lines] + [result.get("seconds", 0.0)])
    added = [{**line, "seconds": round(line["seconds"] + spent, 3)} for line in extra.metrics()]
    every = sorted([*lines, *added], key=lambda line: line["step"])
    clock = Clock()
    for earlier in (extra.clock.seconds, {name: part * spent for name, part in result.get("goodput", {}).items()}):
        clock.go_on(earlier)
    spent += extra.seconds()
    joined.rewind({"metrics": every, "seconds": spent, "clock": clock.seconds, "makers": extra.makers})
    states = []
    for one, config in zip((run, extra), both, strict=True):
        members = [Member(config, one, seed) for seed in config.seeds]
        with open_checkpoints(one.checkpoints, trainer, members) as checkpoints:
            found = checkpoints.restore_each(trainer.abstract(len(members)))
            states.append({saved.step: saved.state for saved in found})
        shutil.copytree(one.path / BEST, joined.path / BEST, dirs_exist_ok=True)
    members = [Member(config, joined, seed) for config in both for seed in config.seeds]
    with open_checkpoints(joined.checkpoints, trainer, members) as checkpoints:
        for step in sorted(states[0].keys() & states[1].keys()):
            checkpoints.save(step, [*states[0][step], *states[1][step]])
    if (events := extra.path / "tensorboard").exists():
        shutil.copytree(events, joined.path / "tensorboard")
