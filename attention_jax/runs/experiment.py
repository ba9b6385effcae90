"""What an experiment supplies, and what the launcher was asked for."""

import contextlib
import functools
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import attention_jax
from attention_jax.errors import UserError
from attention_jax.reports.conclusion import Conclusion, FinishedCell
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table
from attention_jax.runs.folder import Run, open_run
from attention_jax.runs.keys import lacking
from attention_jax.runs.machine import describe_device
from attention_jax.runs.provenance import provenance
from attention_jax.training.description import Description
from attention_jax.training.loop import Trainer
from attention_jax.training.saved import best_steps
from attention_jax.training.state import Variables

# What numbers come from.
PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scipy"),
    *("sacrebleu", "sentencepiece", "spacy", "sacremoses"),
)


SEEDS = 2**31  # those that a program takes
MADE_BY = ("code", "device", "versions")  # what a result says of it
Session = Any  # what an experiment opens of a config and its data; nobody else looks inside


class Together(NamedTuple):
    """What cells share that differ in dynamic values alone: their trainer, if they are trained, and how they finish."""

    finish: Callable[[Sequence[ConfigDict], Sequence[Run]], list[dict]]  # trained runs → the metrics of each, nested
    trainer: Trainer | None = None
    start_from: Callable[[], Variables | None] = lambda: None  # variables to start from instead of fresh ones
    traced: Callable[[ConfigDict], dict[str, Any]] = lambda config: {}  # dynamic values that are not the optimizer's


class Experiment(NamedTuple):
    """What an experiment supplies; everything else is written once, here and in `training`.

    A mode opens one session and hands it to every function that it calls, so that a corpus is read, a program compiled
    and a checkpoint restored once. `config` is then a run's own, which differs from the session's in dynamic values at
    most.
    """

    together: Callable[[Session, str], Together]  # a session, how its runs train → what they share
    evaluate: Callable[[Session, ConfigDict, Run], dict]  # the metrics of a trained run
    figures: Callable[[Session, ConfigDict, Run, dict], list[Figure]]  # …, its result
    tables: Callable[[Session, ConfigDict, Run, dict], list[Table]]
    describe: Callable[[ConfigDict], Description]  # without data
    open: Callable[[ConfigDict, Path], Session] = lambda config, folder: config  # a config, a folder for its data
    translate: Callable[[Session, ConfigDict, Run, Iterator[str], str], Iterator[str]] | None = None  # lines → lines
    evaluate_files: Callable[[Session, ConfigDict, Run, list[str], list[str]], dict] | None = None  # inputs, references
    generate: Callable[[Session, ConfigDict, Run, str], Iterator[str]] | None = None  # a prompt → text in pieces
    evaluate_text: Callable[[Session, ConfigDict, Run, str], dict] | None = None  # a file or folder
    flops: Callable[[Session], float] | None = None  # of training one seed
    steps: Callable[[ConfigDict], int] = lambda config: config.train.steps  # of training one seed; 1 where it is none
    prepare: Callable[[ConfigDict, Path], str] | None = None  # its data as a data set of TFDS → how to train on it
    identify: Callable[[ConfigDict], str] = lambda config: ""  # what tells its data from other data
    check: Callable[[ConfigDict], None] = lambda config: None  # raises UserError for values that cannot be used
    dynamic: tuple[str, ...] = ()  # keys whose values need no program, beside seeds and the optimizer's numbers
    on_cpu: str = "loop"  # how cells that share a program run on a CPU, where the config leaves it open
    # …, a folder for figures, the colour of each setting in all of them
    conclude: Callable[[ConfigDict, list[FinishedCell], Path, Mapping[str, str]], Conclusion] | None = None
    metric: Callable[[ConfigDict], str] = lambda config: config.train.best_by  # what a sweep's table leads with
    compared_by: tuple[str, ...] = ()  # metrics of an evaluation that compare what `train.best_by` may not
    opened: Callable[[ConfigDict, Run, Session, str, int], Any] | None = (
        None  # …, best or last, a seed → what `load` gives
    )


class Request(NamedTuple):
    """What the launcher was asked for; `started` is when the process began, by time.perf_counter."""

    config: ConfigDict
    workdir: Path
    started: float
    profile: bool
    input: str = "-"
    reference: str = ""
    output: str = "-"
    attention: str = ""
    verbose: bool = False
    debug_nans: bool = False
    topology: str = ""
    runs: tuple[Path, ...] = ()  # that are compared, the baseline first
    metrics: tuple[str, ...] = ()  # by which they are
    space: Callable[[], list[dict]] | None = None  # the cells of a sweep over this config
    search: Callable[[], Mapping[str, Any]] | None = None  # what a search over this config draws from, a draw a key
    configure: Callable[[str], ConfigDict] | None = None  # a variant's config; "": this one
    command: tuple[str, ...] = ()  # starts the launcher

    def open(self, extend: bool = False, ignoring: str = "") -> contextlib.AbstractContextManager[Run]:
        """The run's folder, locked; with `extend`, a finished run may get more steps; see `open_run`."""
        require_seeds(self.config.seeds)
        return open_run(self.workdir, self.config, self.started, extend=extend, ignoring=ignoring, profile=self.profile)

    def require_run(self) -> None:
        """Raise UserError where no run was started."""
        if not (self.workdir / "config.json").exists():
            raise UserError(f"{self.workdir}: no run here. Start one with --mode=train --config=….")


def require_seeds(seeds: Sequence[Any]) -> None:
    """Raise UserError for `config.seeds` that no run can have."""
    if not seeds:
        raise UserError("config.seeds is empty: name at least one seed.")
    if not all(isinstance(seed, int) and 0 <= seed < SEEDS for seed in seeds):
        raise UserError(f"config.seeds={seeds}: seeds are whole numbers from 0 to {SEEDS - 1}.")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"config.seeds={seeds}: the same seed twice is not two runs.")


def require_readable(experiment: Experiment, path: Path, config: ConfigDict) -> None:
    """Raise UserError where the config of a run is not one of this version: in what, and which version wrote it."""
    try:
        experiment.check(config)
    except Exception as error:  # of which type is up to whom a value of another type meets first
        what = str(error) if isinstance(error, UserError) else _unreadable(error)
        raise UserError(
            f"{path}: started by another version of the code, whose configs this one cannot read: {what} "
            f"{_checkout(path)}"
        ) from None


def _unreadable(error: Exception) -> str:
    key = lacking(error)
    return f"the config has no {key!r}." if key else f"config.json has a value of another type ({error})."


def _checkout(path: Path) -> str:
    """How to get the version that finished a run."""
    with contextlib.suppress(UserError):
        *_, code = as_list((Run(path, 0.0).result() or {}).get("code", {}))
        if code.get("commit"):
            changed = ", which had changes that were not committed" if code.get("changed") else ""
            return f"Use the version that finished it: git checkout {code['commit']}{changed}."
    return "Use the version that started it; no result.json tells its commit."


def finished(config: ConfigDict, metrics: dict, trained: Path | None = None) -> dict:
    """A run's result: its metrics, what they were measured with, and by which code and command.

    Of a run that was trained, in a folder, it has the step of each seed's best variables.
    """
    known = {"status": "finished", "experiment": config.experiment, "seeds": list(config.seeds)}
    if trained is not None and any(steps := best_steps(trained)):
        known["best_steps"] = steps
    return {**known, **metrics, "device": describe_device(), "versions": _versions(), **provenance()}


def made_by(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The code, device and versions that results were made with: what they have in common, or a list of every one."""
    made: dict[str, Any] = {}
    kept = list(results)
    for key in MADE_BY:
        found = [one for result in kept if key in result for one in as_list(result[key])]
        every = {repr(one): one for one in found}
        made[key] = found[0] if len(every) == 1 else list(every.values())
    return made


def as_list(made: Any) -> list[Any]:
    """What a result says that it was made with, as a list where it was one alone."""
    return made if isinstance(made, list) else [made]


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "attention_jax": attention_jax.__version__}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):  # some are optional
            versions[name] = metadata.version(name)
    return versions
