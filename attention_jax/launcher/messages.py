"""What the launcher says of what went wrong: one line that names the flag, file or key and the fix."""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from attention_jax import hosts, stopping
from attention_jax.errors import NoAnswer, UserError, missing
from attention_jax.launcher import config_files
from attention_jax.runs.config import flatten
from attention_jax.runs.keys import ABBREVIATIONS, lacking, meant
from attention_jax.training.progress import tell


def end_output() -> None:
    """Write no more: the reader of standard output, such as head, has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def guarded(run: Callable[[list[str]], None], argv: list[str]) -> None:
    """`run(argv)`, with what the user can mend told in one line."""
    try:
        with stopping.listening():
            run(argv)
    except stopping.Interrupted as stop:
        tell(f"\n{stop}")
        stopping.end()
    except (UserError, NoAnswer) as error:
        fail(str(error))
    except BrokenPipeError:
        end_output()
    except AttributeError as error:
        if not (key := lacking(error)):
            raise
        fail(f"the config has no {key!r}: add it to the config file, or use the version that started the run.")
    except ModuleNotFoundError as error:
        if not (message := missing(error.name or "")):
            raise
        fail(message)
    except OSError as error:
        fail(_of_system(error))
    except Exception as error:
        hosts.explained(error)
        raise


def fail(message: str) -> NoReturn:
    """Say what is wrong on standard error and end with status 1."""
    tell(f"error: {message}", by_all=True)
    hosts.leave(message)
    sys.exit(1)


def _of_system(error: OSError) -> str:
    if error.errno != errno.ENOSPC:
        return f"{error.filename or 'input or output'}: {error.strerror or error}."
    return f"disk full at {error.filename or 'the workdir'}: free some space and run the same command again."


def unreadable(error: Exception, argv: Sequence[str]) -> str:
    """Why a command line cannot be read, in one line."""
    text = str(error)
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}."
    if (place := _place_in_a_config(error, argv)) and not isinstance(error, ValueError):
        return f"{place}: {type(error).__name__}: {text}."
    if isinstance(error, (KeyError, AttributeError)):
        nearest = re.search(r'Did you mean "(\w+)" instead of "(\w+)"', text)
        key = nearest[2] if nearest else re.sub(r"\W", "", text)
        flag = next((arg.partition("=")[0] for arg in argv if f".{key}" in arg), f"--config.{key}")
        own = _meant(flag.removeprefix("--config."), argv) or (nearest[1] if nearest else "")
        return f"{flag}: the config has no {key!r}." + (f" Did you mean {own!r}?" if own else "")
    raised = re.findall(r"^\s*[\w.]*Error: (.*)$", text, flags=re.MULTILINE)
    return raised[-1] if raised else text.strip().splitlines()[0]


def _place_in_a_config(error: Exception, argv: Sequence[str]) -> str:
    """The last line of a config file that an error came through, FILE:LINE; "" if it came through none."""
    files = {os.path.abspath(file) for file, _ in _configs(argv)}
    passed = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno}" for frame in passed if os.path.abspath(frame.filename) in files]
    return places[-1] if places else ""


def _meant(path: str, argv: Sequence[str]) -> str:
    """The config's own key for what others call so: its name where it is in the same section, else its path."""
    section, _, name = path.rpartition(".")
    found = meant(path, _keys(argv)) if name in ABBREVIATIONS else ""
    owner, _, own = found.rpartition(".")
    return own if owner == section else found


def _keys(argv: Sequence[str]) -> list[str]:
    """The keys of the config that a command line names."""
    return list(flatten(config_files.config(*_configs(argv)[-1]))) if _configs(argv) else []


def _configs(argv: Sequence[str]) -> list[tuple[str, str]]:
    """The config files of a command line, and the variants."""
    named = [arg.removeprefix("--config=") for arg in argv if arg.startswith("--config=")]
    return [(file, variant) for file, _, variant in (text.partition(":") for text in named)]
