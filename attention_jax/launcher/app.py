"""From a command line to a mode: the config, the run's folder, the experiment."""

import contextlib
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app
from ml_collections import ConfigDict, config_flags

from attention_jax import hosts, stores
from attention_jax.errors import UserError
from attention_jax.launcher import config_files, experiments, flags, stored
from attention_jax.launcher.messages import guarded
from attention_jax.launcher.modes import MODES, WRITING
from attention_jax.runs.experiment import Request
from attention_jax.runs.machine import set_up
from attention_jax.runs.provenance import provenance
from attention_jax.sweeps.folder import is_search, is_sweep
from attention_jax.training.progress import tell


def launch(command: Sequence[str], started: float) -> None:
    """Do what the command line asks for, and end the process; `started` is when it began, by time.perf_counter."""
    folder = str(Path.cwd())
    if holds_run(Path.cwd()):  # which is data
        sys.path[:] = [path for path in sys.path if path not in ("", folder)]
    elif sys.path[:1] != [folder]:
        sys.path.insert(0, folder)  # experiments and their modules are looked for here first
    app.run(functools.partial(guarded, functools.partial(_run, command, started)), flags_parser=flags.parse)


def holds_run(folder: Path) -> bool:
    """Whether a folder is a run's or sweep's, or lies in one."""
    return any((path / "config.json").exists() and (path / ".lock").exists() for path in (folder, *folder.parents))


def _run(command: Sequence[str], started: float, argv: list[str]) -> None:
    if len(argv) > 1:
        raise UserError(f"{argv[1]}: not a flag; flags begin with --.")
    provenance()  # of the code as it is now
    runs = _runs()
    workdir = runs[0] if runs else stores.here(flags.WORKDIR.value or _default_workdir())
    asked = flags.CONFIG.value
    config = asked if asked is not None else stored.config_of(workdir, "--runs: " if runs else "")
    if "distributed" in config:
        hosts.join(config.distributed, flags.PROCESS.value, flags.PROCESSES.value)
    mode = _mode(config, workdir)
    flags.require_read(mode)
    set_up(config.precision)
    if asked is None or _is_stored():
        stored.require_own(workdir, stored.config_of(workdir))  # without what overrides it
    request = Request(
        config,
        workdir,
        started,
        profile=flags.PROFILE.value,
        input=flags.INPUT.value,
        reference=flags.REFERENCE.value,
        output=flags.OUTPUT.value,
        attention=flags.ATTENTION.value,
        verbose=flags.VERBOSE.value,
        debug_nans=flags.DEBUG_NANS.value,
        topology=flags.TOPOLOGY.value,
        runs=runs,
        metrics=tuple(flags.METRIC.value),
        space=_space if asked is not None else None,
        search=_search if asked is not None and mode == "search" and not _is_stored() else None,
        configure=_configure if asked is not None else lambda variant: config,
        command=tuple(command),
    )
    with stores.working_in(workdir, tell) if mode in WRITING else contextlib.nullcontext():
        MODES[mode](experiments.load(config.experiment), request)


def _runs() -> tuple[Path, ...]:
    """The runs that are compared; none in another mode."""
    asked, is_asked = flags.RUNS.value, flags.MODE.value == "compare"
    if (asked or flags.METRIC.value) and not is_asked:
        raise UserError("--runs and --metric are for --mode=compare.")
    if is_asked and len(asked) < 2:
        raise UserError("--mode=compare needs two finished runs or more: --runs=A,B; the first is the baseline.")
    if is_asked and (flags.WORKDIR.value or flags.CONFIG.value is not None):
        raise UserError("--mode=compare reads the runs of --runs: leave --workdir and --config out.")
    return tuple(map(stores.here, asked))


def _mode(config: ConfigDict, workdir: Path) -> str:
    """The mode asked for, or what the config is for, or what goes on with the folder."""
    if flags.MODE.value is not None:
        return flags.MODE.value
    if is_search(workdir):
        return "search"
    return "sweep" if is_sweep(workdir) or ("sweep" in config and config.sweep.by_default) else "train"


def _default_workdir() -> Path:
    if flags.CONFIG.value is None:
        raise UserError("name an experiment with --config=configs/…, or a run with --workdir=…")
    file, variant = flags.config_name()
    name, sweep = "-".join((Path(file).stem, *variant.split(","))).rstrip("-"), flags.SWEEP.value
    mode = _mode(flags.CONFIG.value, Path())
    ends = {"sweep": "-sweep", "plan": "-sweep", "search": "-search"}
    return Path("runs") / (name + ends.get(mode, "") + f"-{sweep}" * bool(sweep and mode in ("sweep", "plan")))


def _space() -> list[dict]:
    """The cells of the config file's sweep that --sweep names."""
    return config_files.space(*flags.config_name(), flags.SWEEP.value)


def _search() -> dict[str, Any]:
    """What the config file's search draws from."""
    return config_files.search(*flags.config_name())


def _is_stored() -> bool:
    """Whether the config is a run's own, which is no file of a user's."""
    return flags.config_name()[0] == stored.__file__


def _configure(variant: str) -> ConfigDict:
    """Another variant's config, or the one asked for (""), with what the command line overrides."""
    if not variant:
        return flags.CONFIG.value
    config = config_files.config(flags.config_name()[0], variant)
    try:
        config.update_from_flattened_dict(config_flags.get_override_values(flags.FLAGS["config"]))
    except (AttributeError, KeyError) as error:
        raise UserError(f"sweep: the variant {variant!r} has no such key to override: {error}") from None
    return config.lock()
