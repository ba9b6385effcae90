"""The engines: where a sweep's work is done. Each is handed a command that works until nothing is left to claim."""

import functools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from attention_jax import stopping
from attention_jax.errors import UserError
from attention_jax.training.progress import tell

POLL = 2.0  # seconds
PARTITION = re.compile(r"[\w.,:@+-]*", re.ASCII)


class Work(NamedTuple):
    """What an engine runs: here, or as a command of its own in the folder `cwd`, as often as it likes."""

    here: Callable[[], None]
    command: Sequence[str]
    cwd: Path
    logs: Path
    cells: int
    done: Callable[[], int]  # how many of the cells


def inline(work: Work, settings: Mapping[str, Any]) -> None:
    """In this process, one program after another."""
    del settings
    work.here()


def processes(work: Work, settings: Mapping[str, Any]) -> None:
    """Local worker processes, each pinned to its share of the cores and of the GPUs; says which were killed.

    They end, and save, when this process is asked to, and where it is killed.
    """
    count = settings["workers"]
    work.logs.mkdir(exist_ok=True)
    workers = [_start(work, rank, count) for rank in range(count)]
    try:
        _watch(work, lambda: any(worker.poll() is None for worker in workers))
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
    ended = [rank for rank, worker in enumerate(workers) if worker.returncode < 0]
    if ended:
        names = ", ".join(str(work.logs / f"worker_{rank}.log") for rank in ended)
        tell(f"{len(ended)} of {count} workers were killed; see {names}")


def slurm(work: Work, settings: Mapping[str, Any]) -> None:
    """A job array of SLURM's through submitit: a task that is preempted is queued again and goes on.

    With several `nodes`, or `tasks_per_node`, each worker is so many processes, which train its cells together.

    Raises UserError where SLURM is not there, and for values that cannot stand in a job's script.
    """
    for program in ("sbatch", "srun"):
        if shutil.which(program) is None:
            raise UserError(
                f"config.sweep.engine='slurm': there is no {program} on this machine's PATH: run it where SLURM is."
            )
    executor = executor_of(work.logs, settings)
    together = settings["nodes"] * settings["tasks_per_node"] > 1
    task = _Task((*work.command, *["--config.distributed=auto"] * together), str(work.cwd))
    with executor.batch():
        jobs = [executor.submit(task) for _ in range(settings["workers"])]
    tell(f"submitted {jobs[0].job_id.partition('_')[0]}: {len(jobs)} tasks; logs in {work.logs}")
    _watch(work, functools.partial(_is_queued, jobs[0].job_id.partition("_")[0]))


def executor_of(logs: Path, settings: Mapping[str, Any]) -> Any:
    """What hands jobs to SLURM.

    Submitit writes each of these values into a line of the job's script, which a shell runs: a partition is one word,
    numbers are numbers, and a folder has no control character. Raises UserError for others.
    """
    import submitit

    partition, folder = settings["partition"], str(logs.absolute() / "%j")
    if not isinstance(partition, str) or not PARTITION.fullmatch(partition):
        raise UserError(f"config.sweep.partition={partition!r}: needs a partition's name, or several with commas.")
    for name in ("gpus", "minutes", "cpus", "nodes", "tasks_per_node"):
        if type(settings[name]) is not int:
            raise UserError(f"config.sweep.{name}={settings[name]!r}: needs a whole number.")
    if not folder.isprintable():
        raise UserError(f"--workdir: {folder!r} has a character that cannot stand in a job's script: rename it.")
    executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
    asked = {"slurm_partition": partition, "gpus_per_node": settings["gpus"]}
    asked |= {name: settings[name] for name in ("nodes", "tasks_per_node") if settings[name] > 1}
    executor.update_parameters(
        name="attention_jax",
        timeout_min=settings["minutes"],
        cpus_per_task=settings["cpus"],
        **{name: value for name, value in asked.items() if value},
    )
    return executor


ENGINES: dict[str, Callable[[Work, Mapping[str, Any]], None]] = {
    "inline": inline,
    "processes": processes,
    "slurm": slurm,
}


class _Task:
    """A worker as SLURM runs it; before it is preempted or out of time it saves, and asks to be queued again."""

    def __init__(self, command: tuple[str, ...], cwd: str):
        self._command, self._cwd = command, cwd
        self._process: subprocess.Popen | None = None

    def __call__(self) -> int:
        self._process = subprocess.Popen(self._command, cwd=self._cwd)
        while self._process.poll() is None:
            time.sleep(0.2)  # not wait(), whose lock `checkpoint`, which interrupts us, could never take
        return self._process.returncode

    def checkpoint(self):
        """What submitit calls at the signal that comes before the end."""
        import submitit

        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        return submitit.helpers.DelayedSubmission(_Task(self._command, self._cwd))


def _is_queued(job: str) -> bool:
    """Whether a job of SLURM's waits or runs; one that is forgotten does not, but a controller may be busy."""
    asked = subprocess.run(("squeue", "--noheader", f"--jobs={job}"), capture_output=True, text=True, check=False)
    return bool(asked.stdout.strip()) or (asked.returncode != 0 and "Invalid job id" not in asked.stderr)


def _watch(work: Work, is_running: Callable[[], bool]) -> None:
    """Show how many cells are done, until nothing runs any more. Raises Interrupted where a stop is asked for."""
    interval = 0.5 if sys.stderr.isatty() else 30
    with tqdm(total=work.cells, unit="cell", dynamic_ncols=True, mininterval=interval) as bar:
        while is_running():
            time.sleep(POLL)
            stopping.poll()
            bar.update(work.done() - bar.n)
    stopping.poll()


def _start(work: Work, rank: int, count: int) -> subprocess.Popen:
    with open(work.logs / f"worker_{rank}.log", "w", encoding="utf-8") as log:
        return subprocess.Popen(
            [*_bound(), *_pinned(rank, count), *work.command],
            cwd=work.cwd,
            env=os.environ | _gpus_of(rank, count),
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _bound() -> list[str]:
    """A prefix that has a worker asked to stop where this process is killed, where util-linux has what does it."""
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


def _pinned(rank: int, count: int) -> list[str]:
    """A prefix that keeps a worker on its share of the cores this process may use, where there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    share = cores[rank * len(cores) // count : (rank + 1) * len(cores) // count]
    return ["taskset", "--cpu-list", ",".join(map(str, share))] if share and shutil.which("taskset") else []


def _gpus_of(rank: int, count: int) -> dict[str, str]:
    """One GPU, or its share of several, where CUDA_VISIBLE_DEVICES or NVIDIA's driver names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = [str(number) for number, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]
    gpus = named.split(",") if named else found
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[rank::count])} if len(gpus) >= count else {}
