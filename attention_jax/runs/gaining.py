"""More seeds for a finished run: they are trained alone, and then join those that it has in a run beside it.

RUN/more/           the new seeds' own run while they train
RUN/more/joined/    the run of all seeds: checkpoints and metrics of both, then everything that is measured of them

The run stays what it was until that of all seeds is whole, and then becomes it (runs/taking.py). After a kill at any
moment the same command goes on, and any other finds the one run or the other.
"""

import shutil
import time

from ml_collections import ConfigDict

from attention_jax.files import write_whole
from attention_jax.runs.experiment import Together
from attention_jax.runs.folder import Run, read_config, to_json
from attention_jax.runs.taking import discard, joined_in
from attention_jax.runs.training import open_checkpoints, train_run
from attention_jax.training.loop import Trainer


def gain_seeds(config: ConfigDict, run: Run, together: Together) -> Run:
    """Train the seeds that a finished run lacks; the run of all of `config.seeds`, trained and not yet measured.

    Raises UserError where the loss is not finite, Interrupted where asked to stop; the run itself stays what it was.
    """
    extra = _train(config, run, together)
    joined = Run(joined_in(run.path), time.perf_counter(), run.profile is not None)
    shutil.rmtree(joined.path, ignore_errors=True)  # of a kill: no result tells that it is whole
    joined.path.mkdir()
    write_whole(joined.path / "config.json", to_json(config))
    if together.trainer is not None:
        _join(run, extra, joined, together.trainer, (len(run.seeds_before), len(config.seeds) - len(run.seeds_before)))
    return joined


def _train(config: ConfigDict, run: Run, together: Together) -> Run:
    """The new seeds, trained in a folder of their own."""
    own, more = ConfigDict(config.to_dict()), run.path / "more"
    own.seeds = config.seeds[len(run.seeds_before) :]
    if read_config(more) != own.lock():
        discard(more)  # other seeds were begun, and given up
    more.mkdir(exist_ok=True)
    write_whole(more / "config.json", to_json(own))
    extra = Run(more, time.perf_counter())
    try:
        train_run(own, extra, together)
    finally:
        extra.close()
    return extra


def _join(run: Run, extra: Run, joined: Run, trainer: Trainer, counts: tuple[int, int]) -> None:
    """Write checkpoints of all seeds at every step of which both runs have one, with all their metrics beside.

    `counts` are the numbers of seeds of the run and of the extra one.
    """
    lines = run.metrics()
    spent = max([line["seconds"] for line in lines] + [(run.result() or {}).get("seconds", 0.0)])
    added = [{**line, "seconds": round(line["seconds"] + spent, 3)} for line in extra.metrics()]
    joined.rewind(0, sorted([*lines, *added], key=lambda line: line["step"]))
    states = []
    for one, count in zip((run, extra), counts, strict=True):
        with open_checkpoints(one.checkpoints, trainer.timetable, trainer.task.vocabulary, [one]) as checkpoints:
            every = checkpoints.restore_each(trainer.abstract(count))
            states.append({saved.step: saved.state for saved in every})
    with open_checkpoints(joined.checkpoints, trainer.timetable, trainer.task.vocabulary, [joined]) as checkpoints:
        for step in sorted(states[0].keys() & states[1].keys()):
            checkpoints.save(step, [*states[0][step], *states[1][step]])
    if (events := extra.path / "tensorboard").exists():
        shutil.copytree(events, joined.path / "tensorboard")
