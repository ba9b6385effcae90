"""A run's folder: its lock, its resolved config, its metrics and its result."""

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ml_collections import ConfigDict

from attention_jax import hosts, stopping, stores
from attention_jax.errors import UserError
from attention_jax.files import no_link, read_json, write_whole
from attention_jax.runs.config import flatten
from attention_jax.runs.forms import as_config, as_line, as_result, finite
from attention_jax.runs.links import is_writable, open_lock, refuse_links
from attention_jax.runs.taking import is_to_take, take
from attention_jax.training.clock import Clock
from attention_jax.training.hyper import DEFAULTS, settled
from attention_jax.training.storage import steps_in

POLL = 0.1  # seconds
LONGEST_OWNER = 20  # characters that are shown of whose lock it is
SPARE = 2**16  # bytes that a line of metrics and its events may need
# What a run may write before it has anything worth keeping, the inside of folders first.
MADE = (
    *("data/*.npy", "data/*.vocabulary", "data/*.pairs.jsonl", "data/meta.json", "figures/*.png", "figures/*.pdf"),
    *("checkpoints", "data", "figures", "report.html", "metrics.jsonl", "config.json", ".lock"),
)
MADE_WHOLE = ("profile", "data.partial")
WHERE = ("mesh", "distributed")  # keys of a config that say where a run is computed, and may be others when it goes on


class Busy(UserError):
    """Another process holds the folder."""


class Run:
    """An open run folder. `seconds()` counts the wall time of this and of earlier, interrupted processes.

    All hosts read `path`; a host writes in `own`, which is the same for the first and is thrown away by the others.
    """

    def __init__(self, path: Path, started: float, profile: bool = False, share: float = 1.0, own: Path | None = None):
        self.path, self.own = path, own or path
        self._share = share
        self.profile = self.own / "profile" if profile else None
        self.seeds_before: tuple[int, ...] = ()  # of a finished run that is to gain seeds: those that it has
        self.is_longer = False  # than what is in its folder: a run that is to train more steps
        self._becomes: tuple[int, str] | None = None  # such a run: after which step, and with what config.json
        self.makers: list[dict[str, Any]] = []  # code, device and versions of each process that trained it
        self.clock = Clock()
        self._started = started
        self._earlier = 0.0
        self._events: dict[int, Any] = {}
        self._lines: list[dict] | None = None  # of metrics, where this process trains; None: those of the file

    def seconds(self) -> float:
        """Wall time spent on this run so far: its share of it, where runs train together."""
        return self._earlier + self._share * (time.perf_counter() - self._started)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def subfolder(self, name: str) -> Path:
        """A folder inside the run, made when first asked for."""
        folder = self.own / name
        folder.mkdir(exist_ok=True)
        return folder

    def record(self, step: int) -> dict[str, Any]:
        """What a checkpoint keeps of the run: its metrics up to a step, where its time went, and what trained it."""
        self._become_longer(step)
        time_spent = {"seconds": self.seconds(), "clock": dict(self.clock.seconds)}
        return {"metrics": self.metrics(until=step), **time_spent, "makers": self.makers}

    def rewind(self, record: Mapping[str, Any] | None) -> None:
        """Write metrics.jsonl as a checkpoint kept it, None: without a line; the resumed run goes on from there."""
        if record is None:
            self.begin()
        reached = max((line["seconds"] for line in self.metrics()), default=0.0)
        self._lines = [] if record is None else list(record["metrics"])
        write_whole(self.own / "metrics.jsonl", "".join(map(_line, self._lines)))
        if record is not None:
            self.clock.go_on(record["clock"])
            self.makers = [*record.get("makers", ()), *self.makers]  # older checkpoints have none
        self._earlier = max(reached, record["seconds"] if record else 0.0)
        self.clock.add("lost", self._earlier - (record["seconds"] if record else 0.0))

    def metrics(self, until: float = math.inf) -> list[dict]:
        """Every line of metrics.jsonl up to a step, null where a number was not finite.

        A line that a kill has cut short, or that is damaged, is left out.
        """
        lines = _read_metrics(self.own / "metrics.jsonl") if self._lines is None else self._lines
        return [line for line in lines if line["step"] <= until]

    def log(self, step: int, seed: int, values: dict[str, float]) -> None:
        """Append one line for one seed to metrics.jsonl and to its TensorBoard events.

        What is not finite is null in the file and absent from the events. Raises OSError, before anything is written,
        where the disk is full.
        """
        if shutil.disk_usage(self.own).free < SPARE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.own))
        self._become_longer(step)
        line = {"step": step, "seed": seed, "seconds": round(self.seconds(), 3), **finite(values)}
        with open(self.own / "metrics.jsonl", "a", encoding="utf-8", opener=no_link) as file:
            file.write(_line(line))
        if self._lines is not None:
            self._lines.append(line)
        for name, value in values.items():
            if math.isfinite(value):
                self._writer(seed, step).add_scalar(name.replace(".", "/"), value, step)

    def mean_over_steps(self, name: str, seed: int, after: int) -> float:
        """The token-weighted mean of a training metric over the lines logged after a step; NaN where none is known."""
        lines = [x for x in self.metrics() if x["seed"] == seed and x["step"] > after and x["train.tokens"]]
        tokens = sum(x["train.tokens"] for x in lines)
        if not tokens or any(x[name] is None for x in lines):
            return math.nan
        return sum(x[name] * x["train.tokens"] for x in lines) / tokens

    def has_progress(self) -> bool:
        """Whether anything was trained here that is worth keeping."""
        return bool(steps_in(self.checkpoints) or self.metrics())

    def result(self) -> dict | None:
        """The finished run's result, or None. Raises UserError where it is damaged."""
        path = self.path / "result.json"
        try:
            return as_result(read_json(path.read_bytes())) if path.exists() else None
        except ValueError as error:
            raise UserError(f"{path}: not a result ({error}). Delete it; --mode=train then measures again.") from None

    def close(self) -> None:
        """Flush the TensorBoard events; what a full disk does not take is in metrics.jsonl."""
        for writer in self._events.values():
            with contextlib.suppress(OSError):
                writer.close()

    def become_longer(self, config: ConfigDict) -> None:
        """Be the run of a config with more steps once it has a line or a checkpoint of its own, or begins anew."""
        self._becomes = max(steps_in(self.checkpoints), default=-1), to_json(config)

    def begin(self) -> None:
        """Go on with nothing of what was trained here: a run that is to be longer is it from now on."""
        self._become_longer(0)

    def _become_longer(self, step: int) -> None:
        """Be it now, unless it is still at the step that it had reached."""
        if self._becomes is not None and step != self._becomes[0]:
            (self.own / "result.json").unlink(missing_ok=True)
            write_whole(self.own / "config.json", self._becomes[1])
            self._becomes = None

    def _writer(self, seed: int, step: int) -> Any:
        from tensorboardX import SummaryWriter

        if seed not in self._events:
            self._events[seed] = SummaryWriter(str(self.own / "tensorboard" / f"seed_{seed}"), purge_step=step)
        return self._events[seed]


@contextlib.contextmanager
def open_run(
    path: Path,
    config: ConfigDict,
    started: float,
    *,
    extend: bool = False,
    ignoring: str = "",
    profile: bool = False,
) -> Iterator[Run]:
    """Lock the folder, refuse another config's, write config.json, and close it in the end.

    With `extend`, the config may differ in one of two keys. A run of more `train.steps` is what it was until it has
    trained one of them, and then unfinished. More `seeds`, after those of a finished run, leave its config.json as it
    was, and `seeds_before` has the old ones. A run that a kill left between two states is brought into the later one
    first. Keys of the section `ignoring` may differ
    for this time: then nothing is written, and the folder need not be writable. Raises UserError where another process
    uses the folder, it holds another config's run, or a link in it leads out of it. A start that is refused leaves
    nothing of its own behind.
    """
    is_new = not path.exists()
    is_kept = hosts.by_first(lambda: _is_written(path, ignoring))
    with hold(path) if is_kept else contextlib.nullcontext(), own_folder(path) as own:
        before = hosts.by_first(lambda: _seeds_before(path, config, extend, ignoring))
        is_started = before["is_started"]
        run = Run(path, started, profile, own=own)
        run.seeds_before, run.is_longer = tuple(before["seeds"]), before["is_longer"]
        try:
            if hosts.is_first() and run.is_longer:
                run.become_longer(config)
            elif hosts.is_first() and not ignoring and not run.seeds_before:
                write_whole(path / "config.json", to_json(config))
            yield run
        except BaseException:
            if hosts.is_first() and not is_started and not run.has_progress():
                _clear(path, remove=is_new)
            raise
        finally:
            run.close()


def _is_written(path: Path, ignoring: str) -> bool:
    """Whether the folder must be held; where nothing can be written, and need not be, there is nothing to guard."""
    refuse_links(path)
    return not ignoring or is_writable(path)


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """Where this host writes: in the run's folder if it is the first, else in a folder that is removed in the end."""
    if hosts.is_first():
        yield path
    else:
        with tempfile.TemporaryDirectory(prefix="attention_jax-") as folder:
            yield Path(folder)


def _seeds_before(path: Path, config: ConfigDict, extend: bool, ignoring: str) -> dict[str, Any]:
    """Whether there is a run in the folder, whether it is to train longer, and its seeds if it is to gain more."""
    if is_writable(path):
        take(path)
    stored = read_config(path)
    if stored is None and any(child.name != ".lock" for child in path.iterdir()):
        raise UserError(f"{path}: the folder is not empty and holds no run: choose another --workdir.")
    if stored is None or not extend or not _gains_seeds(path, stored, config):
        is_longer = stored is not None and refuse_other(path, stored, config, extend, ignoring)
        return {"is_started": stored is not None, "is_longer": is_longer, "seeds": ()}
    if not hosts.is_alone():
        raise UserError(f"{path}: a finished run gains seeds on one host: set --config.distributed={hosts.OFF}.")
    if stores.mounted(path):
        raise UserError(f"{path}: a finished run gains seeds on a disk: copy it to one, or choose another --workdir.")
    return {"is_started": True, "is_longer": False, "seeds": stored.seeds}


def refuse_other(path: Path, stored: ConfigDict, config: ConfigDict, extend: bool = False, ignoring: str = "") -> bool:
    """Raise UserError where a run's stored config is another one, and say in what; see `open_run`.

    Whether it has more steps, which it may with `extend`.
    """
    free = tuple(f"{section}." for section in (*WHERE, ignoring) if section)
    changed = {key: values for key, values in _differences(stored, config).items() if not f"{key}.".startswith(free)}
    before, now = changed.get("train.steps", (0, 0))
    is_longer = extend and list(changed) == ["train.steps"] and now > before
    if changed and not is_longer:
        told = {key: ["nothing" if one is None else repr(one) for one in both] for key, both in changed.items()}
        shown = "; ".join(f"config.{key}: {old} there, {new} now" for key, (old, new) in told.items())
        raise UserError(f"{path}: holds a run of another config ({shown}). Choose another --workdir.")
    return is_longer


def _gains_seeds(path: Path, stored: ConfigDict, config: ConfigDict) -> bool:
    """Whether a config has more seeds than that of a finished run, and differs in nothing else."""
    is_more = len(config.seeds) > len(stored.seeds) > 0 and config.seeds[: len(stored.seeds)] == stored.seeds
    return is_more and (path / "result.json").exists() and what_differs(stored, config) == ["seeds"]


def what_differs(stored: ConfigDict, config: ConfigDict) -> list[str]:
    """The keys in which two configs of one run must not differ, and do: it may go on elsewhere."""
    return [key for key in _differences(stored, config) if key.partition(".")[0] not in WHERE]


def read_config(path: Path) -> ConfigDict | None:
    """The config a run or sweep was started with, or None where there is none.

    A run that a kill left between two states is brought into the later one first. Numbers of the optimizer that an
    older version did not have get their defaults.
    """
    if is_to_take(path) and is_writable(path):
        refuse_links(path)
        with hold(path, wait=True):
            take(path)
    file = path / "config.json"
    if not file.exists():
        return None
    try:
        config = ConfigDict(as_config(read_json(file.read_bytes())))
    except (RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{file}: not a config ({error}). Choose another --workdir.") from None
    if not {"experiment", "seeds", "precision"} <= set(config):
        raise UserError(f"{file}: not the config of a run. Choose another --workdir.")
    if "optimizer" in config:
        config.optimizer = {**DEFAULTS, **config.optimizer.to_dict()}
    return config.lock()


def to_json(config: ConfigDict) -> str:
    """The resolved config as JSON."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def write_result(path: Path, result: dict) -> None:
    """Write result.json, the last thing that a run writes; what is not finite becomes null."""
    write_whole(path / "result.json", json.dumps(finite(result), indent=2, allow_nan=False) + "\n")


def _differences(stored: ConfigDict, config: ConfigDict) -> dict[str, tuple[Any, Any]]:
    old, new = (flatten(json.loads(to_json(_settled(c)))) for c in (stored, config))
    keys = [*old, *(key for key in new if key not in old)]
    return {k: (old.get(k), new.get(k)) for k in keys if old.get(k) != new.get(k)}


def _settled(config: ConfigDict) -> ConfigDict:
    """The config with the defaults of its optimizer written out: said or not, they are the same run."""
    return ConfigDict({**config, "optimizer": settled(config.optimizer)}) if "optimizer" in config else config


def _read_metrics(file: Path) -> list[dict]:
    whole = file.read_bytes().split(b"\n")[:-1] if file.exists() else []  # the last is empty, or was cut short
    return [line for line in map(as_line, whole) if line is not None]


def _line(values: dict) -> str:
    return json.dumps(values, allow_nan=False) + "\n"


def _clear(path: Path, remove: bool) -> None:
    """Delete what a start without progress has made; anything else stays, and the folder that it lies in."""
    for name in MADE_WHOLE:
        shutil.rmtree(path / name, ignore_errors=True)
    for child in (child for pattern in MADE for child in path.glob(pattern)):
        if child.is_dir():
            _remove_if_empty(child)
        else:
            child.unlink()
    if remove:
        _remove_if_empty(path)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def hold(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold the folder for this run; the kernel lets go when the first host's process ends, however it ends.

    Where another run holds it: raises Busy, or waits. Raises Interrupted where it is asked to stop meanwhile, and
    UserError for a folder that cannot be written, or whose lock is a link.
    """
    with contextlib.ExitStack() as stack:
        refused = hosts.by_first(lambda: _taken(stack, path, wait))
        if refused:
            raise Busy(refused)
        yield


def _taken(stack: contextlib.ExitStack, path: Path, wait: bool) -> str:
    """Hold a folder until the stack ends; or why it cannot be held now."""
    file = stack.enter_context(open_lock(path))
    while not _is_locked(file):
        owner = (path / ".lock").read_text(encoding="utf-8", errors="replace")[:LONGEST_OWNER]
        if not wait:
            return f"{path}: in use by process {owner}. Wait for it, or choose another --workdir."
        stopping.poll_alone()
        time.sleep(POLL)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return ""


def _is_locked(file: IO[str]) -> bool:
    """Lock a file for this process, where no other has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
