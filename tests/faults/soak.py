"""Resident memory of a long training of a small translator, after each of its evaluations: it does not grow.

python tests/faults/soak.py --steps=10000 --evaluations=50
"""

import argparse
import gc
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

sys.path.insert(0, str(Path(__file__).parents[2]))

from attention_jax.runs.experiment import Together
from attention_jax.runs.folder import open_run
from attention_jax.runs.machine import set_up
from attention_jax.runs.training import train_run
from configs.nmt import get_config
from experiments.nmt import EXPERIMENT

MOST = 1.02  # times as much as after the first fifth of the evaluations


def config_of(steps: int, evaluations: int) -> ConfigDict:
    """A small Transformer on the embedded corpus, evaluated and saved so many times."""
    config, every = get_config("transformer_book,embedded"), steps // evaluations
    config.model.kwargs.update({"encoder_layers": 1, "decoder_layers": 1})
    config.train.update({"steps": steps, "log_every": 100, "evaluate_every": every, "checkpoint_every": every})
    return config.lock()


def resident() -> float:
    """MB of this process in memory, without what nothing refers to."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def watched(together: Together, found: list[float]) -> Together:
    """The same, but that after each evaluation the memory in use is added to `found`, and printed."""
    trainer: Any = together.trainer

    def evaluate(variables):
        values = trainer.task.evaluate(variables)
        found.append(resident())
        print(f"after {len(found)} evaluations: {found[-1]:.1f} MB", flush=True)
        return values

    return together._replace(trainer=trainer._replace(task=trainer.task._replace(evaluate=evaluate)))


def soak(steps: int, evaluations: int, folder: Path) -> list[float]:
    """MB in memory after each evaluation of a run that is trained in a folder."""
    config, found = config_of(steps, evaluations), list[float]()
    set_up(config.precision)
    with open_run(folder, config, time.perf_counter()) as run:
        session = EXPERIMENT.open(config, folder / "data")
        train_run(config, run, watched(EXPERIMENT.together(session, "loop"), found))
    return found


def growth(found: list[float]) -> float:
    """The most memory after the first fifth of the evaluations, divided by that at its end."""
    later = found[len(found) // 5 :]
    return max(later) / later[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--evaluations", type=int, default=50)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        grown = growth(soak(asked.steps, asked.evaluations, Path(folder)))
    print(f"memory grew to {grown:.3f} of what it was after the first fifth; {MOST} is allowed")
    sys.exit(grown > MOST)


if __name__ == "__main__":
    main()
