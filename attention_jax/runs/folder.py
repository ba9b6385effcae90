"""A run's folder: its lock, its resolved config, its metrics and its result."""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.files import no_link, read_json, write_whole
from attention_jax.runs.config import flatten, tupled
from attention_jax.runs.interrupt import Interrupted
from attention_jax.runs.taking import is_to_take, take
from attention_jax.training.checkpoints import steps_in
from attention_jax.training.hyper import DEFAULTS, settled

POLL = 0.1  # seconds
COMMIT = re.compile("[0-9a-f]*")  # "" where it is not known
LONGEST_OWNER = 20  # characters that are shown of whose lock it is
CANNOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)
SPARE = 2**16  # bytes that a line of metrics and its events may need
# What a run may write before it has anything worth keeping, the inside of folders first.
MADE = (
    *("data/*.npy", "data/*.vocabulary", "data/*.pairs.jsonl", "data/meta.json", "figures/*.png", "figures/*.pdf"),
    *("checkpoints", "data", "figures", "report.html", "metrics.jsonl", "config.json", ".lock"),
)
MADE_WHOLE = ("profile", "data.partial")
SECTIONS = ("data", "model", "train", "optimizer", "evaluate", "generate", "precision", "sweep", "population")


class Busy(UserError):
    """Another process holds the folder."""


class Run:
    """An open run folder. `seconds()` counts the wall time of this and of earlier, interrupted processes."""

    def __init__(self, path: Path, started: float, profile: bool = False, share: float = 1.0):
        self.path = path
        self._share = share
        self.profile = path / "profile" if profile else None
        self.seeds_before: tuple[int, ...] = ()  # of a finished run that is to gain seeds: those that it has
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
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        return folder

    def rewind(self, step: int, lines: Sequence[dict] | None = None) -> None:
        """Write metrics.jsonl up to a restored step; the resumed run goes on from there.

        `lines` are the metrics that the step's checkpoint kept; None where it kept none: the file's are taken.
        """
        self._lines = self.metrics(step) if lines is None else list(lines)
        write_whole(self.path / "metrics.jsonl", "".join(map(_line, self._lines)))
        self._earlier = max((line["seconds"] for line in self._lines), default=0.0)

    def metrics(self, until: float = math.inf) -> list[dict]:
        """Every line of metrics.jsonl up to a step, null where a number was not finite.

        A line that a kill has cut short, or that is damaged, is left out.
        """
        lines = _read_metrics(self.path / "metrics.jsonl") if self._lines is None else self._lines
        return [line for line in lines if line["step"] <= until]

    def log(self, step: int, seed: int, values: dict[str, float]) -> None:
        """Append one line for one seed to metrics.jsonl and to its TensorBoard events.

        What is not finite is null in the file and absent from the events. Raises OSError, before anything is written,
        where the disk is full.
        """
        if shutil.disk_usage(self.path).free < SPARE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        line = {"step": step, "seed": seed, "seconds": round(self.seconds(), 3), **_finite(values)}
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8", opener=no_link) as file:
            file.write(_line(line))
        if self._lines is not None:
            self._lines.append(line)
        for name, value in values.items():
            if math.isfinite(value):
                self._writer(seed, step).add_scalar(name.replace(".", "/"), value, step)

    def mean_over_steps(self, name: str, seed: int, after: int) -> float:
        """The token-weighted mean of a training metric over the lines logged after a step; NaN where none is known."""
        lines = [x for x in self.metrics() if x["seed"] == seed and x["step"] > after]
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

    def _writer(self, seed: int, step: int) -> Any:
        from tensorboardX import SummaryWriter

        if seed not in self._events:
            self._events[seed] = SummaryWriter(str(self.path / "tensorboard" / f"seed_{seed}"), purge_step=step)
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

    With `extend`, the config may differ in one of two keys. A larger `train.steps` makes the run unfinished again. More
    `seeds`, after those of a finished run, leave its config.json as it was, and `seeds_before` has the old ones. A run
    that a kill left between two states is brought into the later one first. Keys
    of the section `ignoring` may differ for this time. Raises UserError where another process uses the folder, or it
    holds another config's run. A start that is refused leaves nothing of its own behind.
    """
    is_new = not path.exists()
    refuse_links(path)
    with contextlib.nullcontext() if ignoring and not is_writable(path) else hold(path):  # there is nothing to guard
        if is_writable(path):
            take(path)
        stored = read_config(path)
        if stored is None and any(child.name != ".lock" for child in path.iterdir()):
            raise UserError(f"{path}: the folder is not empty and holds no run: choose another --workdir.")
        run = Run(path, started, profile)
        if stored is not None and extend and _gains_seeds(path, stored, config):
            run.seeds_before = stored.seeds
        elif stored is not None:
            refuse_other(path, stored, config, extend, ignoring)
        try:
            if not ignoring and not run.seeds_before:
                write_whole(path / "config.json", to_json(config))
            yield run
        except BaseException:
            if stored is None and not run.has_progress():
                _clear(path, remove=is_new)
            raise
        finally:
            run.close()


def refuse_other(path: Path, stored: ConfigDict, config: ConfigDict, extend: bool = False, ignoring: str = "") -> None:
    """Raise UserError where a run's stored config is another one, and say in what; see `open_run`."""
    changed = _differences(stored, config)
    if ignoring:
        changed = {key: values for key, values in changed.items() if not key.startswith(f"{ignoring}.")}
    before, now = changed.get("train.steps", (0, 0))
    if extend and list(changed) == ["train.steps"] and now > before:
        (path / "result.json").unlink(missing_ok=True)
    elif changed:
        told = {key: ["nothing" if one is None else repr(one) for one in both] for key, both in changed.items()}
        shown = "; ".join(f"config.{key}: {old} there, {new} now" for key, (old, new) in told.items())
        raise UserError(f"{path}: holds a run of another config ({shown}). Choose another --workdir.")


def _gains_seeds(path: Path, stored: ConfigDict, config: ConfigDict) -> bool:
    """Whether a config has more seeds than that of a finished run, and differs in nothing else."""
    is_more = len(config.seeds) > len(stored.seeds) > 0 and config.seeds[: len(stored.seeds)] == stored.seeds
    return is_more and (path / "result.json").exists() and list(_differences(stored, config)) == ["seeds"]


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
        config = ConfigDict(_as_config(read_json(file.read_bytes())))
    except (RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{file}: not a config ({error}). Choose another --workdir.") from None
    if not {"experiment", "seeds", "precision"} <= set(config):
        raise UserError(f"{file}: not the config of a run. Choose another --workdir.")
    if "optimizer" in config:
        config.optimizer = {**DEFAULTS, **config.optimizer.to_dict()}
    return config.lock()


def _as_config(found: Any) -> dict[str, Any]:
    """What config.json says, with tuples. Raises ValueError where a part that every mode reads is of another type."""
    if not isinstance(found, dict):
        raise ValueError(f"a {type(found).__name__}, and an object is needed")
    for key in (key for key in SECTIONS if key in found):
        if not isinstance(found[key], dict):
            raise ValueError(f"{key} is {found[key]!r}, and must be a section")
    flat = flatten(found)
    for key in (key for key in flat if key == "experiment" or key.endswith(("path", "init_from"))):
        if not isinstance(flat[key], str):
            raise ValueError(f"{key} is {flat[key]!r}, and must be a text")
    if isinstance(found.get("experiment"), dict):
        raise ValueError("experiment is a section, and must be a text")
    if not _are_seeds(found.get("seeds", [])):
        raise ValueError(f"seeds is {found['seeds']!r}, and must be a list of whole numbers")
    return tupled(found)


def as_result(found: Any) -> dict[str, Any]:
    """What result.json says. Raises ValueError where a part that every reader needs is missing or of another type."""
    if not isinstance(found, dict):
        raise ValueError(f"a {type(found).__name__}, and an object is needed")
    if not isinstance(found.get("status"), str) or not _are_seeds(found.get("seeds")):
        raise ValueError("without its status or its seeds")
    members, code = found.get("members", []), found.get("code", {})
    if not isinstance(members, list) or not all(isinstance(member, dict) for member in members):
        raise ValueError("its members are no list of objects")
    for one in code if isinstance(code, list) else [code]:
        if not isinstance(one, dict) or not COMMIT.fullmatch(str(one.get("commit", ""))):
            raise ValueError("its code is not told by a commit")
    return found


def _are_seeds(found: Any) -> bool:
    return isinstance(found, list) and all(type(seed) is int for seed in found)


def to_json(config: ConfigDict) -> str:
    """The resolved config as JSON."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def write_result(path: Path, result: dict) -> None:
    """Write result.json, the last thing that a run writes; what is not finite becomes null."""
    write_whole(path / "result.json", json.dumps(_finite(result), indent=2, allow_nan=False) + "\n")


def _differences(stored: ConfigDict, config: ConfigDict) -> dict[str, tuple[Any, Any]]:
    old, new = (flatten(json.loads(to_json(_settled(c)))) for c in (stored, config))
    keys = [*old, *(key for key in new if key not in old)]
    return {k: (old.get(k), new.get(k)) for k in keys if old.get(k) != new.get(k)}


def _settled(config: ConfigDict) -> ConfigDict:
    """The config with the defaults of its optimizer written out: said or not, they are the same run."""
    return ConfigDict({**config, "optimizer": settled(config.optimizer)}) if "optimizer" in config else config


def _read_metrics(file: Path) -> list[dict]:
    whole = file.read_bytes().split(b"\n")[:-1] if file.exists() else []  # the last is empty, or was cut short
    return [line for line in map(_parsed, whole) if line is not None]


def _parsed(text: bytes) -> dict | None:
    """A line of metrics, which older versions wrote with NaN and Infinity; None where it is not one."""
    try:
        line = read_json(text, parse_constant=lambda name: None)
    except ValueError:
        return None
    if not isinstance(line, dict) or not {"step", "seed", "seconds"} <= set(line):
        return None
    is_whole = type(line["step"]) is int and type(line["seed"]) is int and line["seconds"] is not None
    return _finite(line) if is_whole and all(map(_is_number_or_none, line.values())) else None


def _is_number_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _line(values: dict) -> str:
    return json.dumps(values, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
def hold(path: Path, wait: bool = False, is_interrupted: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold the folder for this process; the kernel lets go when the process ends, however it ends.

    Where another process holds it: raises Busy, or waits. Raises Interrupted where it is asked to stop meanwhile, and
    UserError for a folder that cannot be written, or whose lock is a link.
    """
    with _open_lock(path) as file:
        while not _is_locked(file):
            owner = (path / ".lock").read_text(encoding="utf-8", errors="replace")[:LONGEST_OWNER]
            if not wait:
                raise Busy(f"{path}: in use by process {owner}. Wait for it, or choose another --workdir.")
            if is_interrupted():
                raise Interrupted(f"stopped while process {owner} had {path}.")
            time.sleep(POLL)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _open_lock(path: Path) -> IO[str]:
    try:
        path.mkdir(parents=True, exist_ok=True)
        return open(path / ".lock", "a", encoding="utf-8", opener=no_link)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{path}: not a folder: choose another --workdir.") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path / '.lock'}: a link, which is not followed: remove it.") from None
        if error.errno in CANNOT_WRITE:
            raise UserError(
                f"{path}: cannot be written ({error.strerror}): choose another --workdir, or copy it to one of yours."
            ) from None
        raise


def is_writable(path: Path) -> bool:
    """Whether this process may write in a folder that is there."""
    return not path.is_dir() or os.access(path, os.W_OK)


def refuse_links(path: Path, allowed: Collection[str] = ("data",)) -> None:
    """Raise UserError where a link inside a run's or sweep's folder leads out of it: nothing is written through one.

    A cell's data may lie elsewhere: they are imported whole, and only read after that. The folder itself may be a link.
    """
    home = path.resolve()
    inside = [child for name in ("", "figures", "tables") for child in (path / name).glob("*")]
    for child in (*inside, *path.glob(".*")):
        if child.is_symlink() and child.name not in allowed and not child.resolve().is_relative_to(home):
            raise UserError(
                f"{child}: a link out of the folder, which nothing is written through: replace it by what it leads to."
            )


def _is_locked(file: IO[str]) -> bool:
    """Lock a file for this process, where no other has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
