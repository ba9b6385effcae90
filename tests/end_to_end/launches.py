"""Runs the launcher again and again, each time in a fork of one process that has imported what it imports.

A request is a line of JSON, {"argv": …, "stdin": a file, "out": a file, "err": a file}; the answer is the exit status.
"""

import contextlib
import importlib
import json
import os
import sys
import time
import traceback

PRELOADED = (
    "experiments.nmt",
    "experiments.language_model",
    "experiments.kernel_regression",
    "matplotlib.backends.backend_agg",
    "orbax.checkpoint",
    "sacrebleu",
    "tensorboardX",
    "jinja2",
)


def main():
    sys.argv = ["launch.py"]
    from attention_jax.launcher import __main__ as launcher
    from attention_jax.launcher import app  # noqa: F401  # which it imports when it starts

    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(run(launcher, **request))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def run(launcher, argv, stdin, out, err):
    """Be the launcher; its exit status."""
    for number, path in enumerate((stdin, out, err)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    sys.argv, launcher.STARTED = argv, time.perf_counter()
    status = 0
    try:
        launcher.main((sys.executable, os.path.abspath("launch.py")))
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return status


if __name__ == "__main__":
    main()
