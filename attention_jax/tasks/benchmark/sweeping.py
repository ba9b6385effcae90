"""A sweep of many runs, beside the same runs in PyTorch under Hydra, side by side in processes of joblib's."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.tasks.benchmark.pairs import random_pairs, write_pairs
from attention_jax.tasks.benchmark.rounds import Row
from attention_jax.tasks.benchmark.tools import Tools
from attention_jax.training.progress import tell

PEER, PACKAGE = "PyTorch, Hydra, joblib", "hydra_plugins"


def measure(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Seconds of the sweep of `config.sweeping`, once."""
    asked = config.sweeping
    path = config.data[asked.corpus]
    if not path:
        tell(f"sweep  left out: name its corpus, --config.data.{asked.corpus}=PATH")
        return
    flags = (f"--config={asked.config}", f"--config.data.path={Path(path).absolute()}", "--mode=sweep", *asked.flags)
    run = tools.folder / "sweep"
    cache = tools.folder / "sweep-cache"
    seconds = tools.launch([*flags, f"--config.train.steps={asked.steps}", f"--workdir={run}"], cache)[1]
    cells = len(list(run.glob("cells/*/result.json")))
    others = {PEER: [_of_peer(config, tools)]} if tools.peers.has(PACKAGE) else {}
    yield Row("sweep", f"{cells} runs of {asked.steps} steps", "s", [seconds], others)


def _of_peer(config: ConfigDict, tools: Tools) -> float:
    asked = config.sweeping
    case = asked.case
    pairs = write_pairs(
        tools.folder / "sweep.npz", random_pairs(case.pairs, case.length, case.vocabulary), case.vocabulary
    )
    grid = [f"{key}={','.join(map(str, values))}" for key, values in asked.grid.items()]
    fixed = [f"batches={pairs}", f"steps={asked.steps}", f"hydra.sweep.dir={tools.folder / 'hydra'}"]
    command = [tools.peers.interpreter, str(tools.peers.folder / "torch_sweep.py"), "--multirun", *fixed, *grid]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"torch_sweep.py: {done.stderr.strip().splitlines()[-1]}")
    return time.perf_counter() - started
