"""The modes of the launcher, written once: an experiment supplies functions, a mode calls them."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax import hosts, stopping, stores
from attention_jax.errors import UserError
from attention_jax.launcher.compilation import compile_step
from attention_jax.launcher.description import describe_step
from attention_jax.launcher.search import print_answer, search
from attention_jax.reports.names import name_of_run
from attention_jax.reports.page import show
from attention_jax.reports.run import estimate, run_page
from attention_jax.runs.code import Code, changed_since
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import MADE_BY, Experiment, Request, Session, as_list, finished, made_by
from attention_jax.runs.folder import (
    Run,
    read_config,
    refuse_other,
    to_json,
    write_result,
    write_whole,
)
from attention_jax.runs.gaining import gain_seeds
from attention_jax.runs.lines import read_lines, read_whole
from attention_jax.runs.taking import take
from attention_jax.runs.training import train_run
from attention_jax.sweeps.comparing import compare_runs
from attention_jax.sweeps.engines import ENGINES, Work
from attention_jax.sweeps.folder import current_code, failures, is_search, is_sweep, open_sweep, refuse_sweep
from attention_jax.sweeps.planning import describe_plan, make_plan, preview
from attention_jax.sweeps.settings import without_settings
from attention_jax.sweeps.sharing import share_work
from attention_jax.sweeps.working import work
from attention_jax.terminal import put, write
from attention_jax.training.clock import goodput
from attention_jax.training.progress import tell
from attention_jax.training.replay import watched


def train(experiment: Experiment, request: Request) -> None:
    """Start, resume or go on with a run, for more steps or with more seeds; then write figures, report and result."""
    config = request.config
    with request.open(extend=True) as run:
        if run.seeds_before or run.is_longer or not hosts.by_first(lambda: run.result() is not None):
            code = current_code(experiment, config)  # as it is now
            experiment.check(config)
            session = experiment.open(config, run.path / "data")
            together = experiment.together(session, "loop")
            if request.debug_nans:
                training = config.seeds[len(run.seeds_before) :]  # those that it has are trained
                together = together._replace(trainer=watched(together.trainer, training))
            trained, made = run, _made_now(config, code)
            if run.seeds_before:
                _tell_other_code(run, config, code)
                trained = gain_seeds(config, run, together, made)
            trained.makers = [made]
            train_run(config, trained, together)
            before = [run.result() or {}] if run.seeds_before else []
            result = finished(config, together.finish([config], [trained])[0], trained.path)
            result |= made_by([*before, *trained.makers])
            result["seconds"] = round(trained.seconds(), 2)
            if together.trainer is not None:
                result["goodput"] = goodput(trained.clock.seconds, trained.seconds())
            _write_report(experiment, session, config, trained, result, run.path.name)
            write_result(trained.own, result)
            take(run.own)
        elif hosts.is_first():
            _tell_finished(run, current_code(experiment, config))
        if hosts.is_first():
            _print_result(run)


def evaluate(experiment: Experiment, request: Request) -> None:
    """Measure a trained run again, also with another `config.evaluate`; or on a text, or on a pair of files."""
    _require_one_run(request, "evaluate")
    with request.open(ignoring="evaluate") as run:
        if request.reference or request.input != "-":
            of_files = _evaluate_files if experiment.evaluate_text is None else _evaluate_text
            found = of_files(experiment, request, run)
        else:
            session = experiment.open(request.config, run.path / "data")
            found = experiment.evaluate(session, request.config, run)
        for name, value in flatten(found).items():
            if name != "members":
                put(f"{name}\t{value}")


def report(experiment: Experiment, request: Request) -> None:
    """Draw the figures of a finished run, or of a sweep, and write its page again."""
    request.require_run()
    if is_sweep(request.workdir):
        sweep = open_sweep(experiment, request.workdir)
        refuse_other(sweep.path, without_settings(sweep.config), without_settings(request.config))
        return print_answer(dataclasses.replace(sweep, config=request.config))
    request = request._replace(config=without_settings(request.config))
    with request.open() as run:
        result = run.result()
        if result is None:
            raise UserError(f"{run.path}: not finished, nothing to report. Run --mode=train first.")
        session = experiment.open(request.config, run.path / "data")
        _write_report(experiment, session, request.config, run, result, run.path.name)
        put(run.path / "report.html")


def translate(experiment: Experiment, request: Request) -> None:
    """Translate the lines of a file, or of standard input, to a file or to standard output."""
    _require_one_run(request, "translate")
    if experiment.translate is None:
        raise UserError(f"config.experiment={request.config.experiment!r}: has nothing to translate.")
    _require_folders(output=request.output, attention=request.attention)
    run, session = _open_unlocked(experiment, request, "evaluate")
    lines = read_lines(request.input)
    translations = experiment.translate(session, request.config, run, lines, request.attention)
    _write_out((f"{line}\n" for line in translations), request.output)


def generate(experiment: Experiment, request: Request) -> None:
    """Go on with a prompt, a file or standard input, to a file or to standard output, as the text is written."""
    _require_one_run(request, "generate")
    if experiment.generate is None:
        raise UserError(f"config.experiment={request.config.experiment!r}: has nothing to generate.")
    _require_folders(output=request.output)
    run, session = _open_unlocked(experiment, request, "generate")
    prompt = read_whole(request.input)
    _write_out(experiment.generate(session, request.config, run, prompt), request.output)


def prepare(experiment: Experiment, request: Request) -> None:
    """Turn the config's corpus into a prepared data set of TFDS."""
    if experiment.prepare is None:
        raise UserError(f"config.experiment={request.config.experiment!r}: has no corpus to prepare.")
    if request.output == "-":
        raise UserError("--mode=prepare writes a data set of TFDS: name its folder with --output=FOLDER/NAME.")
    put(experiment.prepare(request.config, Path(request.output)))


def describe(experiment: Experiment, request: Request) -> None:
    """Parameters and where they lie, memory and FLOPs of one training step, without data or training."""
    description = experiment.describe(request.config)
    put(describe_step(request.config, description, request.verbose))


def compile_(experiment: Experiment, request: Request) -> None:
    """Compile the training step for --topology, or for this machine, without data, and say whether it fits."""
    found = compile_step(request.config, experiment.describe, request.topology)
    put(found.text)
    if found.refusal:
        raise UserError(found.refusal)


def sweep(experiment: Experiment, request: Request) -> None:
    """Plan what is missing of a sweep, do it with the engine that the config names, and answer."""
    _refuse_search(request.workdir)
    if stores.mounted(request.workdir) and (request.config.sweep.engine != "inline" or not hosts.is_alone()):
        raise UserError(
            f"config.sweep.engine={request.config.sweep.engine!r}: one process alone sweeps in an object store: set "
            "inline and config.distributed=off, or sweep on a disk that workers share."
        )
    planned = make_plan(experiment, request)
    cells = planned.plan.cells
    settings = planned.config.sweep
    order = Work(
        here=functools.partial(share_work, planned),
        command=(*request.command, "--mode=work", f"--workdir={planned.path.absolute()}"),
        cwd=Path.cwd(),
        logs=planned.path / "logs",
        cells=len(cells),
        done=lambda: sum(map(planned.is_done, cells)),
    )
    if order.done() < len(cells):
        ENGINES[settings.engine](order, settings)
    failed = failures(planned)
    lines = [f"  {planned.cell(name)}: {line}" for name, line in failed.items()]
    missing = len(cells) - order.done() - len(failed)
    if missing:
        lines.append(f"  {missing} were not reached: the same command goes on with them (logs in {order.logs})")
    if lines:
        lines = [f"{len(failed)} of {len(cells)} cells failed, {missing} are missing:", *lines]
    try:
        if order.done():
            print_answer(planned)
    except UserError as error:
        lines = [str(error), *lines]
    if lines:
        raise UserError("\n".join(lines))


def show_plan(experiment: Experiment, request: Request) -> None:
    """Print what shares a program in a sweep, what is done, and what the rest will take; write nothing."""
    with preview(experiment, request) as planned:
        put(describe_plan(planned))


def work_on_sweep(experiment: Experiment, request: Request) -> None:
    """Do what is missing of a planned sweep; what engines start."""
    _refuse_search(request.workdir)
    work(open_sweep(experiment, request.workdir))


def compare(experiment: Experiment, request: Request) -> None:
    """Say whether finished runs differ from the first of --runs, with the tests of a sweep and no plan."""
    _require_folders(output=request.output)
    text = compare_runs(experiment, request.runs, request.metrics)
    if request.output == "-":
        put(text)
    else:
        write_whole(Path(request.output), f"{text}\n")
        put(request.output)


def _alone(mode: Callable[[Experiment, Request], None]) -> Callable[[Experiment, Request], None]:
    """A mode of a run, whose config has nothing to say of sweeps."""

    @functools.wraps(mode)
    def called(experiment, request):
        mode(experiment, request._replace(config=without_settings(request.config)))

    return called


MODES: dict[str, Callable[[Experiment, Request], None]] = {
    "train": _alone(train),
    "evaluate": _alone(evaluate),
    "report": report,
    "translate": _alone(translate),
    "generate": _alone(generate),
    "compare": compare,
    "prepare": _alone(prepare),
    "describe": _alone(describe),
    "compile": _alone(compile_),
    "sweep": sweep,
    "plan": show_plan,
    "search": search,
    "work": work_on_sweep,
}


WRITING = ("train", "report", "sweep", "search", "work")  # modes that write in the workdir
MOST_TOLD = 60  # numbers of a result, at the end of a run


def _refuse_search(path: Path) -> None:
    """Raise UserError where the folder is a search's, which plans its cells and drops them by itself."""
    if is_search(path):
        raise UserError(f"{path}: holds a search. Go on with it: --mode=search; or choose another --workdir.")


def _require_one_run(request: Request, mode: str) -> None:
    """Raise UserError where no run was started, or the folder is a sweep's, which has many."""
    request.require_run()
    refuse_sweep(request.workdir, mode, "--workdir")


def _require_folders(**outputs: str) -> None:
    """Raise UserError where there is no folder for a file that is to be written, or it is a folder itself."""
    for flag, path in outputs.items():
        if path and Path(path).is_dir():
            raise UserError(f"--{flag}={path}: is a folder: name a file.")
        if not Path(path).parent.is_dir():
            raise UserError(f"--{flag}={path}: there is no folder {Path(path).parent}.")


def _open_unlocked(experiment: Experiment, request: Request, ignoring: str) -> tuple[Run, Session]:
    """A run that may be used while others use it; keys of the section `ignoring` may differ for this time."""
    stored = read_config(request.workdir)
    if stored is not None:
        refuse_other(request.workdir, stored, request.config, ignoring=ignoring)
    run = Run(request.workdir, request.started)
    return run, experiment.open(request.config, run.path / "data")


def _write_out(pieces: Iterator[str], output: str) -> None:
    """Write text to standard output as it comes, or to a file whole."""
    path = Path(output)
    if output in ("-", "/dev/stdout"):
        for piece in pieces:
            write(piece)
    elif path.exists() and not path.is_file():  # a device or a pipe
        path.write_text("".join(pieces), encoding="utf-8")
    else:
        write_whole(path.resolve(), "".join(pieces))  # a link stays, and what it leads to is written


def _evaluate_text(experiment: Experiment, request: Request, run: Run) -> dict:
    assert experiment.evaluate_text is not None
    if request.reference:
        raise UserError("--reference: a language model is measured on one text, --input=FILE.")
    session = experiment.open(request.config, run.path / "data")
    return experiment.evaluate_text(session, request.config, run, request.input)


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
    session = experiment.open(request.config, run.path / "data")
    return experiment.evaluate_files(session, request.config, run, inputs, references)


def _tell_finished(run: Run, code: Code) -> None:
    """Say that nothing was trained, and warn if the run was made by other code."""
    tell(f"{run.path}: finished before; nothing was run. Its result:")
    if changed := changed_since(as_list((run.result() or {}).get("code", [])), code):
        tell(f"warning: it was made by other code; {changed}. Choose another --workdir to run today's.")


def _made_now(config: ConfigDict, code: Code) -> dict:
    """What this process makes results with: its code, device and versions."""
    made = {key: value for key, value in finished(config, {}).items() if key in MADE_BY}
    return made | {"code": {**made["code"], "version": code.version}}


def _tell_other_code(run: Run, config: ConfigDict, code: Code) -> None:
    """Warn where the seeds that a run has were trained by other code than those that it gains will be."""
    changed = changed_since(as_list((run.result() or {}).get("code", [])), code)
    if changed:
        more = config.seeds[len(run.seeds_before) :]
        tell(
            f"{run.path}: its seeds {run.seeds_before} were made by other code; {changed}. Seeds {more} will be of "
            "today's: choose another --workdir to have all of one code."
        )


def _write_report(
    experiment: Experiment, session: Session, config: ConfigDict, run: Run, result: dict, name: str
) -> None:
    tables = experiment.tables(session, config, run, result)
    stopping.poll_alone()
    figures = experiment.figures(session, config, run, result)
    stopping.poll_alone()
    page = run_page(
        f"{_title(config, run, result)}, {name}", flatten(config), flatten(result), tables, figures, to_json(config)
    )
    write_whole(run.own / "report.html", page)


def _title(config: ConfigDict, run: Run, result: dict) -> str:
    """What a run is of; of a sweep's cell the experiment, for the command was the sweep's."""
    return config.experiment if run.path.parent.name == "cells" else name_of_run(result)


def outermost(names: Sequence[str]) -> list[str]:
    """As many names as fit on a screen, in their order: those in the fewest sections of a result, the first of them."""
    chosen = set(sorted(names, key=lambda name: name.count("."))[:MOST_TOLD])
    return [name for name in names if name in chosen]


def _print_result(run: Run) -> None:
    result = flatten(run.result() or {})
    shown = {name: show(estimate(result, name)) for name, value in result.items() if isinstance(value, (int, float))}
    shown |= {name: "[{}, {}]".format(*map(show, result[name])) for name in result if name.endswith("_ci95")}
    told = outermost([name for name in result if name in shown])
    width = max(map(len, told), default=0)
    for name in told:
        put(f"{name:<{width}}  {shown[name]}")
    if len(told) < len(shown):
        put(f"… and {len(shown) - len(told)} numbers more: result.json has them all")
    put()
    figures, pages = sorted((run.path / "figures").glob("*.png")), sorted(run.path.glob("*.html"))
    for path in (*figures, *pages, run.path / "result.json"):
        put(path)
