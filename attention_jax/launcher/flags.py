"""The command line's flags, their help, and how they are read."""

import itertools
import sys
import textwrap

from absl import flags, logging
from ml_collections import config_flags

from attention_jax.errors import UserError
from attention_jax.launcher import config_files, stored
from attention_jax.launcher.messages import end_output, fail, unreadable
from attention_jax.launcher.modes import MODES
from attention_jax.runs.provenance import program
from attention_jax.terminal import put

FLAGS = flags.FLAGS
CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: FILE.py or FILE.py:VARIANT.")
MODE = flags.DEFINE_enum(
    "mode", None, list(MODES), "What to do; without it, sweep where the config or folder is of one, else train."
)
WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder; without it, runs/ and the config's name.")
INPUT = flags.DEFINE_string(
    "input",
    "-",
    "What --mode=translate reads: a file, a sentence a line, or - (standard input); --mode=generate: all of it is a "
    "prompt; and what --mode=evaluate measures.",
)
REFERENCE = flags.DEFINE_string("reference", "", "The translations of --input, a line each, for --mode=evaluate.")
OUTPUT = flags.DEFINE_string(
    "output",
    "-",
    "Where --mode=translate, generate and compare write: a file, or - (standard output); and --mode=prepare: "
    "FOLDER/NAME.",
)
ATTENTION = flags.DEFINE_string(
    "attention", "", "For --mode=translate: a page (.html) of alignments, or every head's weights (.npz)."
)
RUNS = flags.DEFINE_list("runs", [], "What --mode=compare compares: folders of finished runs, the baseline first.")
METRIC = flags.DEFINE_list("metric", [], "By what --mode=compare compares, such as test.bleu; empty: by all it can.")
SWEEP = flags.DEFINE_string(
    "sweep", "", "Which of the config file's sweeps --mode=sweep or plan is of; empty: its default."
)
PROCESS = flags.DEFINE_integer(
    "process_id", None, "Which of a run's processes this is, from 0, with --config.distributed=HOST:PORT."
)
PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "How many processes a run has, with --config.distributed=HOST:PORT."
)
TOPOLOGY = flags.DEFINE_string(
    "topology", "", "The slice of TPUs that --mode=compile compiles for, as v5e:16x16; empty: this machine."
)
VERBOSE = flags.DEFINE_bool("verbose", False, "--mode=describe lists every tensor.")
PROFILE = flags.DEFINE_bool("profile", False, "Write a trace of a few training steps to the run's profile/.")
DEBUG_NANS = flags.DEFINE_bool(
    "debug_nans", False, "Where training meets a NaN, name the operation and the layer that made it (slower)."
)
OWN = (
    CONFIG,
    MODE,
    WORKDIR,
    INPUT,
    REFERENCE,
    OUTPUT,
    ATTENTION,
    RUNS,
    METRIC,
    SWEEP,
    PROCESS,
    PROCESSES,
    TOPOLOGY,
    VERBOSE,
    PROFILE,
    DEBUG_NANS,
)
READ_BY = (  # flags of some modes alone
    (INPUT, ("translate", "generate", "evaluate")),
    (REFERENCE, ("evaluate",)),
    (OUTPUT, ("translate", "generate", "compare", "prepare")),
    (ATTENTION, ("translate",)),
    (SWEEP, ("sweep", "plan")),
    (TOPOLOGY, ("compile",)),
    (VERBOSE, ("describe",)),
    (PROFILE, ("train",)),
    (DEBUG_NANS, ("train",)),
)
HELP = ("--help", "-help", "-h", "--helpshort")

ABOUT = """\
Train, evaluate, report on or describe an experiment, or sweep over it; translate or write with it; prepare
data for TFDS.

  {program} --config=configs/kernel_regression.py
  {program} --config=configs/nmt.py:bahdanau,tatoeba --config.data.path=PATH/fra.txt --workdir=runs/mine
  {program} --workdir=runs/mine --mode=report
  echo "The cat is not black." | {program} --workdir=runs/mine --mode=translate
  printf 'ROMEO:\\n' | {program} --workdir=runs/shakespeare --mode=generate
  {program} --config=configs/nmt.py:bahdanau,embedded --mode=sweep --workdir=runs/sweep
  {program} --mode=compare --runs=runs/mine,runs/other
  {program} --config=configs/nmt.py:bahdanau,tsv --config.data.path=PATH --mode=prepare --output=TFDS/fra

Any value of the config can be overridden: --config.optimizer.learning_rate=1e-3. The same command started again
resumes an unfinished run.
"""


def parse(argv: list[str]) -> list[str]:
    """Read the flags; a config that cannot be read or overridden is refused in one line."""
    if set(argv[1:]) & set(HELP):
        try:
            put(help_text())
            sys.stdout.flush()
        except BrokenPipeError:
            end_output()
        sys.exit()
    try:
        _require_texts(argv)
        argv = _with_configs(argv)
    except UserError as error:
        fail(str(error))
    try:
        remaining = FLAGS(argv)
    except Exception as error:
        fail(unreadable(error, argv))
    if FLAGS["verbosity"].using_default_value:
        logging.set_verbosity(logging.WARNING)  # --verbosity=0 shows what libraries say
    return remaining


def _require_texts(argv: list[str]) -> None:
    """Raise UserError for what no file can say, which is not UTF-8, and for a folder without a name."""
    for arg in argv[1:]:
        try:
            arg.encode()
        except UnicodeEncodeError:
            raise UserError(f"{arg}: not UTF-8, as names in a run's files must be. Rename it.") from None
    if "" in _values(argv, "--workdir"):
        raise UserError("--workdir=: empty: name a folder, or leave the flag out.")


def require_read(mode: str) -> None:
    """Raise UserError where a flag is given that the mode does not read."""
    for flag, modes in READ_BY:
        if mode not in modes and flag.value != flag.default:
            raise UserError(f"--{flag.name}: is for --mode={' or '.join(modes)}, and this is {mode}.")


def config_name() -> tuple[str, str]:
    """The config's file and its variant, "" where none is asked for."""
    file, _, variant = config_flags.get_config_filename(FLAGS["config"]).partition(":")
    return file, variant


def help_text() -> str:
    """What --help prints: examples, flags, modes."""
    of_flags = [(f"--{holder.name}", FLAGS[holder.name].help or "") for holder in OWN]
    of_modes = [(name, (mode.__doc__ or "").partition("\n")[0]) for name, mode in MODES.items()]
    parts = [ABOUT.format(program=program()), "Flags:", *map(_entry, of_flags)]
    return "\n".join([*parts, "", "Modes:", *map(_entry, of_modes), "", "--helpfull lists the libraries' flags too."])


def _entry(named: tuple[str, str]) -> str:
    name, text = named
    return textwrap.fill(text, 118, initial_indent=f"  {name:<13} ", subsequent_indent=" " * 16)


def _with_configs(argv: list[str]) -> list[str]:
    """The command line with the paths of config files, and a run's own config where only its values are overridden."""
    if not _values(argv, "--config") and any(arg.startswith("--config.") for arg in argv):
        own = [f"--config={stored.__file__}:{workdir}" for workdir in _values(argv, "--workdir")]
        argv = [argv[0], *own, *argv[1:]]
    return [_with_path(argv, index) for index in range(len(argv))]


def _with_path(argv: list[str], index: int) -> str:
    arg = argv[index]
    flag, name = ("--config=", arg[9:]) if arg.startswith("--config=") else ("", arg)
    if not flag and (index == 0 or argv[index - 1] != "--config"):
        return arg
    file, colon, variant = name.partition(":")
    return f"{flag}{config_files.find(file)}{colon}{variant}"


def _values(argv: list[str], flag: str) -> list[str]:
    """What a flag is given, as --flag=value or as --flag value."""
    apart = [after for arg, after in itertools.pairwise(argv) if arg == flag]
    return apart + [arg.partition("=")[2] for arg in argv if arg.startswith(f"{flag}=")]
