"""Train, evaluate, report on or describe an experiment; translate with it; prepare its data for TFDS.

    python launch.py --config=configs/kernel_regression.py
    python launch.py --config=configs/nmt.py:bahdanau,tatoeba --config.data.path=PATH/fra.txt --workdir=runs/mine
    python launch.py --workdir=runs/mine --mode=report
    echo "I am home." | python launch.py --workdir=runs/mine --mode=translate
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
import itertools
import os
import re
import sys
from pathlib import Path
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

import experiments
from attention_jax.errors import UserError
from attention_jax.runs.folder import read_config
from attention_jax.runs.interrupt import Interrupted
from attention_jax.runs.machine import set_up
from attention_jax.runs.modes import MODES, Request

ROOT = Path(__file__).resolve().parent
CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: FILE.py or FILE.py:VARIANT.")
MODE = flags.DEFINE_enum("mode", "train", list(MODES), "What to do; train starts a run or resumes it.")
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
PROFILE = flags.DEFINE_bool("profile", False, "Write a trace of a few training steps to the run's profile/.")
DEBUG_NANS = flags.DEFINE_bool("debug_nans", False, "Stop with a traceback where a NaN first appears (slow).")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise UserError(f"{argv[1]}: not a flag; flags begin with --.")
    workdir = Path(WORKDIR.value or _default_workdir())
    config = CONFIG.value if CONFIG.value is not None else read_config(workdir)
    if config is None:
        raise UserError(f"{workdir}: no run here. Name an experiment with --config=configs/…")
    set_up(config.precision, debug_nans=DEBUG_NANS.value)
    request = Request(
        config, workdir, STARTED, PROFILE.value, INPUT.value, REFERENCE.value, OUTPUT.value, ATTENTION.value
    )
    MODES[MODE.value](experiments.load(config.experiment), request)


def parse(argv: list[str]) -> list[str]:
    """The flags; a config that cannot be read or overridden is refused in one line."""
    named = [after for arg, after in itertools.pairwise(argv) if arg == "--config"]
    named += [arg.partition("=")[2] for arg in argv if arg.startswith("--config=")]
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
    name = config_flags.get_config_filename(flags.FLAGS["config"])
    return Path("runs") / re.sub(r"[:,]", "-", Path(name).name.replace(".py", ""))


if __name__ == "__main__":
    app.run(guarded, flags_parser=parse)
