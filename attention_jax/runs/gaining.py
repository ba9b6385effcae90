"""More seeds for a finished run: they are trained alone, and then join those that it has.

RUN/more/           the new seeds' own run while they train
RUN/more/joined/    checkpoints and metrics of all seeds; config.json, written last, tells that they are whole

A kill at any moment leaves a folder that the same command goes on with.
"""

import shutil
import time
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.files import write_whole
from attention_jax.runs.experiment import Together
from attention_jax.runs.folder import Run, read_config, to_json
from attention_jax.runs.training import open_checkpoints, train_run
from attention_jax.training.loop import Trainer


def gain_seeds(config: ConfigDict, run: Run, together: Together) -> None:
    """Train the seeds that a finished run lacks; the run then has all of `config.seeds`, trained and not yet measured.

    Raises UserError where the loss is not finite, Interrupted where asked to stop; the run is then what it was.
    """
    more = run.path / "more"
    if not (more / "joined" / "config.json").exists() and together.trainer is not None:
        extra = _train(config, run, more, together)
        _join(config, run, extra, more / "joined", together.trainer)
    _take(config, run.path, more)


def _train(config: ConfigDict, run: Run, more: Path, together: Together) -> Run:
    """The new seeds, trained in a folder of their own."""
    own = ConfigDict(config.to_dict())
    own.seeds = config.seeds[len(run.seeds_before) :]
    if (stored := read_config(more)) is not None and stored != own.lock():
        shutil.rmtree(more)  # other seeds were begun, and given up
    more.mkdir(exist_ok=True)
    write_whole(more / "config.json", to_json(own))
    extra = Run(more, time.perf_counter())
    try:
        train_run(own, extra, together)
    finally:
        extra.close()
    return extra


def _join(config: ConfigDict, run: Run, extra: Run, folder: Path, trainer: Trainer) -> None:
    """Write checkpoints of all seeds at every step of which both have one, with all their metrics beside."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    joined, lines, before = Run(folder, 0.0), run.metrics(), len(run.seeds_before)
    spent = max((line["seconds"] for line in lines), default=0.0)
    added = [{**line, "seconds": round(line["seconds"] + spent, 3)} for line in extra.metrics()]
    joined.rewind(0, sorted([*lines, *added], key=lambda line: line["step"]))
    states = []
    for one, count in ((run, before), (extra, len(config.seeds) - before)):
        with open_checkpoints(one.checkpoints, trainer.timetable, trainer.task.vocabulary, [one]) as checkpoints:
            every = checkpoints.restore_each(trainer.abstract(count))
            states.append({saved.step: saved.state for saved in every})
    with open_checkpoints(joined.checkpoints, trainer.timetable, trainer.task.vocabulary, [joined]) as checkpoints:
        for step in sorted(states[0].keys() & states[1].keys()):
            checkpoints.save(step, [*states[0][step], *states[1][step]])
    write_whole(folder / "config.json", to_json(config))


def _take(config: ConfigDict, path: Path, more: Path) -> None:
    """Replace the run's own pieces by the joined ones, one after another; a piece that is gone was taken before."""
    joined = more / "joined"
    (path / "result.json").unlink(missing_ok=True)
    if (joined / "checkpoints").exists():
        if not (more / "replaced").exists():
            (path / "checkpoints").replace(more / "replaced")
        (joined / "checkpoints").replace(path / "checkpoints")
    if (joined / "metrics.jsonl").exists():
        (joined / "metrics.jsonl").replace(path / "metrics.jsonl")
    for events in (more / "tensorboard").glob("*"):
        shutil.rmtree(path / "tensorboard" / events.name, ignore_errors=True)
        events.replace(path / "tensorboard" / events.name)
    write_whole(path / "config.json", to_json(config))
    shutil.rmtree(more, ignore_errors=True)
