"""The modes of the launcher, written once: an experiment supplies functions, a mode calls them."""

import contextlib
import platform
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table, render, show_number
from attention_jax.runs.folder import (
    Run,
    flatten,
    open_run,
    read_config,
    refuse_other,
    to_json,
    write_result,
    write_whole,
)
from attention_jax.runs.lines import read_lines
from attention_jax.runs.machine import describe_device
from attention_jax.training.cost import cost


class Description(NamedTuple):
    """A config's parameters (shapes), one training step, and the shapes it is called with."""

    parameters: Any
    step: Callable
    arguments: tuple


class Experiment(NamedTuple):
    """What an experiment supplies; everything else is written once, here and in `training`."""

    train: Callable[[ConfigDict, Run], dict]  # trains or resumes → metrics, nested
    evaluate: Callable[[ConfigDict, Run], dict]  # the metrics of a trained run
    describe: Callable[[ConfigDict], Description]
    figures: Callable[[ConfigDict, Run, dict], list[Figure]]
    tables: Callable[[ConfigDict, Run, dict], list[Table]]
    translate: Callable[[ConfigDict, Run, Iterator[str], str], Iterator[str]] | None = None  # lines → lines
    evaluate_files: Callable[[ConfigDict, Run, list[str], list[str]], dict] | None = None  # inputs, references
    prepare: Callable[[ConfigDict, Path], str] | None = None  # its data as a data set of TFDS → how to train on it


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

    def open(self, extend: bool = False, ignoring: str = "") -> contextlib.AbstractContextManager[Run]:
        """The run's folder, locked; with `extend`, a finished run may get more steps; see `open_run`."""
        if not self.config.seeds:
            raise UserError("config.seeds is empty: name at least one seed.")
        if not all(isinstance(seed, int) and seed >= 0 for seed in self.config.seeds):
            raise UserError(f"config.seeds={self.config.seeds}: seeds are whole numbers, 0 or more.")
        if len(set(self.config.seeds)) < len(self.config.seeds):
            raise UserError(f"config.seeds={self.config.seeds}: the same seed twice is not two runs.")
        return open_run(self.workdir, self.config, self.started, extend=extend, ignoring=ignoring, profile=self.profile)

    def require_run(self) -> None:
        """Raise UserError where no run was started."""
        if not (self.workdir / "config.json").exists():
            raise UserError(f"{self.workdir}: no run here. Start one with --mode=train --config=….")


def train(experiment: Experiment, request: Request) -> None:
    """Start, resume or go on with a run, then write its figures, report and result."""
    config = request.config
    with request.open(extend=True) as run:
        if run.result() is None:
            metrics = experiment.train(config, run)
            result = {"status": "finished", "experiment": config.experiment, "seeds": list(config.seeds), **metrics}
            result |= {"device": describe_device(), "versions": _versions()}
            _write_report(experiment, config, run, result)
            write_result(run.path, result | {"seconds": round(run.seconds(), 2)})
        _print_result(run)


def evaluate(experiment: Experiment, request: Request) -> None:
    """Measure a trained run again, as `config.evaluate` says, which may be another; or on a pair of files."""
    request.require_run()
    with request.open(ignoring="evaluate") as run:
        asked_files = request.reference or request.input != "-"
        found = _evaluate_files(experiment, request, run) if asked_files else experiment.evaluate(request.config, run)
        for name, value in flatten(found).items():
            if name != "members":
                print(f"{name}\t{value}")


def report(experiment: Experiment, request: Request) -> None:
    """Draw a finished run's figures and write its page again."""
    request.require_run()
    with request.open() as run:
        result = run.result()
        if result is None:
            raise UserError(f"{run.path}: not finished, nothing to report. Run --mode=train first.")
        _write_report(experiment, request.config, run, result)
        print(run.path / "report.html")


def translate(experiment: Experiment, request: Request) -> None:
    """Translate the lines of a file, or of standard input, to a file or to standard output."""
    request.require_run()
    if experiment.translate is None:
        raise UserError(f"config.experiment={request.config.experiment!r}: has nothing to translate.")
    stored = read_config(request.workdir)
    if stored is not None:
        refuse_other(request.workdir, stored, request.config, ignoring="evaluate")
    run = Run(request.workdir, request.started)  # not locked: a run may be used while others use it
    translations = experiment.translate(request.config, run, read_lines(request.input), request.attention)
    output = Path(request.output)
    if request.output == "-":
        for line in translations:
            print(line, flush=True)
    elif output.exists() and not output.is_file():  # a device or a pipe
        output.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    else:
        write_whole(output, "".join(f"{line}\n" for line in translations))


def prepare(experiment: Experiment, request: Request) -> None:
    """Turn the config's corpus into a prepared data set of TFDS."""
    if experiment.prepare is None:
        raise UserError(f"config.experiment={request.config.experiment!r}: has no corpus to prepare.")
    if request.output == "-":
        raise UserError("--mode=prepare writes a data set of TFDS: name its folder with --output=FOLDER/NAME.")
    print(experiment.prepare(request.config, Path(request.output)))


def describe(experiment: Experiment, request: Request) -> None:
    """Parameters, memory and FLOPs of one training step, without data or training."""
    from tabulate import tabulate

    description = experiment.describe(request.config)
    leaves = jax.tree_util.tree_leaves_with_path(description.parameters)
    rows = [(_name(path), "×".join(map(str, leaf.shape)), leaf.dtype, leaf.size) for path, leaf in leaves]
    print(tabulate(rows, headers=("parameter", "shape", "dtype", "size"), intfmt=",", tablefmt="presto"))
    spent = cost(description.step, *description.arguments)
    print(f"\nparameters        {sum(leaf.size for _, leaf in leaves):,}")
    print(f"memory a step     {spent.bytes / 2**20:,.1f} MiB")
    print(f"FLOPs a step      {spent.flops:,.0f}")


MODES: dict[str, Callable[[Experiment, Request], None]] = {
    "train": train,
    "evaluate": evaluate,
    "report": report,
    "translate": translate,
    "prepare": prepare,
    "describe": describe,
}


def _evaluate_files(experiment: Experiment, request: Request, run: Run) -> dict:
    if experiment.evaluate_files is None:
        raise UserError(f"config.experiment={request.config.experiment!r}: has no pair of files to measure.")
    if not request.reference or request.input == "-":
        raise UserError("--mode=evaluate measures a pair of files: name both, --input=FILE and --reference=FILE.")
    inputs, references = (list(read_lines(path)) for path in (request.input, request.reference))
    if len(inputs) != len(references):
        raise UserError(
            f"{request.input} has {len(inputs):,} lines and {request.reference} {len(references):,}: "
            "they must be parallel."
        )
    for path, lines in ((request.input, inputs), (request.reference, references)):
        empty = next((number for number, line in enumerate(lines, start=1) if not line.strip()), 0)
        if empty:
            raise UserError(f"{path}:{empty}: an empty sentence cannot be measured.")
    return experiment.evaluate_files(request.config, run, inputs, references)


def _write_report(experiment: Experiment, config: ConfigDict, run: Run, result: dict) -> None:
    tables = experiment.tables(config, run, result)
    figures = experiment.figures(config, run, result)
    write_whole(
        run.path / "report.html", render(f"{config.experiment}: {run.path.name}", tables, figures, to_json(config))
    )


def _print_result(run: Run) -> None:
    shown = {name: _show(name, value) for name, value in flatten(run.result() or {}).items()}
    width = max(map(len, shown))
    for name, text in shown.items():
        if text:
            print(f"{name:<{width}}  {text}")
    print()
    for path in (*sorted((run.path / "figures").glob("*.png")), run.path / "report.html", run.path / "result.json"):
        print(path)


def _show(name: str, value: Any) -> str:
    """Numbers, and intervals as two of them; nothing for anything else."""
    if isinstance(value, list) and "ci95" in name:
        return " to ".join(_show("", end) for end in value)
    return show_number(value) if isinstance(value, (int, float)) else ""


def _name(path: tuple) -> str:
    return "/".join(str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path)


def _versions() -> dict[str, str]:
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sacrebleu")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}
