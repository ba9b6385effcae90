"""Train, evaluate, report on or describe an experiment, or sweep over it; translate with it; prepare data for TFDS.

    python launch.py --config=configs/kernel_regression.py
    python launch.py --config=configs/nmt.py:bahdanau,tatoeba --config.data.path=PATH/fra.txt --workdir=runs/mine
    python launch.py --workdir=runs/mine --mode=report
    echo "The cat is not black." | python launch.py --workdir=runs/mine --mode=translate
    python launch.py --config=configs/nmt.py:bahdanau,embedded --mode=sweep --workdir=runs/sweep
    python launch.py --config=configs/nmt.py:bahdanau,tsv --config.data.path=PATH --mode=prepare --output=TFDS/fra

Any value of the config can be overridden: --config.optimizer.learning_rate=1e-3. The same command
started again resumes an unfinished run.
"""

import signal
import time

STARTED = time.perf_counter()
if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is something to save, Ctrl-C just stops

import errno
import inspect
import itertools
import os
import re
import runpy
import sys
from pathlib import Path
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

import experiments
from attention_jax.errors import UserError
from attention_jax.runs import stored
from attention_jax.runs.experiment import Request
from attention_jax.runs.interrupt import Interrupted
from attention_jax.runs.machine import set_up
from attention_jax.runs.modes import MODES
from attention_jax.runs.provenance import provenance
from attention_jax.sweeps.folder import is_sweep, stored_config

ROOT = Path(__file__).resolve().parent
CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: FILE.py or FILE.py:VARIANT.")
MODE = flags.DEFINE_enum(
    "mode",
    None,
    list(MODES),
    "What to do; train starts a run or resumes it. Default: sweep where the config or folder is of one, else train.",
)
WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder. Default: runs/ and the config's name.")
INPUT = flags.DEFINE_string(
    "input", "-", "What --mode=translate reads: a file, a sentence a line, or - (standard input); and --mode=evaluate."
)
REFERENCE = flags.DEFINE_string("reference", "", "The translations of --input, a line each, for --mode=evaluate.")
OUTPUT = flags.DEFINE_string(
    "output", "-", "Where --mode=translate writes: a file, or - (standard output); and --mode=prepare: FOLDER/NAME."
)
ATTENTION = flags.DEFINE_string(
    "attention", "", "For --mode=translate: a page (.html) of alignments, or every head's weights (.npz)."
)
SWEEP = flags.DEFINE_string(
    "sweep", "", "Which of the config file's sweeps --mode=sweep or plan is of; empty: its default."
)
PROFILE = flags.DEFINE_bool("profile", False, "Write a trace of a few training steps to the run's profile/.")
DEBUG_NANS = flags.DEFINE_bool("debug_nans", False, "Stop with a traceback where a NaN first appears (slow).")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise UserError(f"{argv[1]}: not a flag; flags begin with --.")
    provenance()  # of the code as it is now
    workdir = Path(WORKDIR.value or _default_workdir())
    config = CONFIG.value if CONFIG.value is not None else stored_config(workdir)
    if config is None:
        raise UserError(f"{workdir}: no run here. Name an experiment with --config=configs/…")
    set_up(config.precision, debug_nans=DEBUG_NANS.value)
    request = Request(
        config,
        workdir,
        STARTED,
        PROFILE.value,
        INPUT.value,
        REFERENCE.value,
        OUTPUT.value,
        ATTENTION.value,
        space=_space if CONFIG.value is not None else None,
        configure=_configure,
        command=(sys.executable, str(ROOT / "launch.py")),
    )
    MODES[_mode(config, workdir)](experiments.load(config.experiment), request)


def _mode(config: ConfigDict, workdir: Path) -> str:
    """The mode asked for, or what the config is for, or what goes on with the folder."""
    if MODE.value is not None:
        return MODE.value
    return "sweep" if is_sweep(workdir) or ("sweep" in config and config.sweep.by_default) else "train"


def _configure(variant: str) -> ConfigDict:
    """Another variant's config, or the one asked for (""), with what the command line overrides."""
    if not variant:
        return CONFIG.value
    config = _config_file()["get_config"](variant)
    try:
        config.update_from_flattened_dict(config_flags.get_override_values(flags.FLAGS["config"]))
    except (AttributeError, KeyError) as error:
        raise UserError(f"sweep: the variant {variant!r} has no such key to override: {error}") from None
    return config.lock()


def _space() -> list[dict]:
    """The cells of the config file's sweep that --sweep names."""
    file, (name, _, variant) = _config_file(), _config_name()
    if "sweep" not in file:
        raise UserError(f"{name}: has no sweep(), the list of overrides that --mode=sweep runs.")
    takes = inspect.signature(file["sweep"]).parameters
    if SWEEP.value and "name" not in takes:
        raise UserError(f"--sweep={SWEEP.value}: {name} has one sweep alone: leave --sweep out.")
    asked = {"name": SWEEP.value, "variant": variant}
    try:
        return file["sweep"](**{key: value for key, value in asked.items() if value and key in takes})
    except ValueError as error:
        raise UserError(f"--sweep={SWEEP.value}: {error}") from None


def parse(argv: list[str]) -> list[str]:
    """The flags; a config that cannot be read or overridden is refused in one line."""
    named = _values(argv, "--config")
    if not named and any(arg.startswith("--config.") for arg in argv):  # overrides of the run's own config
        own = [f"--config={stored.__file__}:{workdir}" for workdir in _values(argv, "--workdir")]
        argv = [argv[0], *own, *argv[1:]]
    for file in (name.partition(":")[0] for name in named):
        if not (Path(file).is_file() and file.endswith(".py")):
            known = ", ".join(f"configs/{path.name}" for path in sorted((ROOT / "configs").glob("*.py")))
            fail(f"{file}: no such config; there are {known}.")
    try:
        remaining = flags.FLAGS(argv)
    except Exception as error:
        fail(_one_line(error, argv))
    if flags.FLAGS["verbosity"].using_default_value:
        logging.set_verbosity(logging.WARNING)  # --verbosity=0 shows what libraries say
    return remaining


def _values(argv: list[str], flag: str) -> list[str]:
    """What a flag is given, as --flag=value or as --flag value."""
    apart = [after for arg, after in itertools.pairwise(argv) if arg == flag]
    return apart + [arg.partition("=")[2] for arg in argv if arg.startswith(f"{flag}=")]


def fail(message: str) -> NoReturn:
    """Say what is wrong on standard error and end with status 1."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def guarded(argv: list[str]) -> None:
    """`main`, with what the user can mend told in one line."""
    try:
        main(argv)
    except Interrupted as stop:
        print(f"\n{stop}", file=sys.stderr)
        sys.exit(130)
    except UserError as error:
        fail(str(error))
    except BrokenPipeError:  # the reader of our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except AttributeError as error:
        if not any(isinstance(arg, KeyError) for arg in error.args):  # which a config raises for a key that it lacks
            raise
        key = re.sub(r"\W", "", str(error))
        fail(f"the config has no {key!r}: add it to the config file, or use the version that started the run.")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            fail(f"{error.filename or 'input or output'}: {error.strerror or error}.")
        fail(f"disk full at {error.filename or 'the workdir'}: free some space and run the same command again.")


def _one_line(error: Exception, argv: list[str]) -> str:
    text = str(error)
    if isinstance(error, (KeyError, AttributeError)):
        nearest = re.search(r'Did you mean "(\w+)" instead of "(\w+)"', text)
        key = nearest[2] if nearest else re.sub(r"\W", "", text)
        flag = next((arg.partition("=")[0] for arg in argv if f".{key}" in arg), f"--config.{key}")
        return f"{flag}: the config has no {key!r}." + (f" Did you mean {nearest[1]!r}?" if nearest else "")
    raised = re.findall(r"^\s*\w+Error: (.*)$", text, flags=re.MULTILINE)
    return raised[-1] if raised else text.strip().splitlines()[0]


def _default_workdir() -> Path:
    if CONFIG.value is None:
        raise UserError("name an experiment with --config=configs/…, or a run with --workdir=…")
    file, _, variant = _config_name()
    name = "-".join((Path(file).stem, *variant.split(","))).rstrip("-")
    of_sweep = _mode(CONFIG.value, Path()) in ("sweep", "plan")
    return Path("runs") / (f"{name}-sweep" + f"-{SWEEP.value}" * bool(SWEEP.value) if of_sweep else name)


def _config_name() -> tuple[str, str, str]:
    return config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")


def _config_file() -> dict:
    """What the config file defines, by name."""
    return runpy.run_path(_config_name()[0])


if __name__ == "__main__":
    app.run(guarded, flags_parser=parse)
