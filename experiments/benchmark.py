"""How fast the project's programs are, each measured in turn with other libraries at the same work."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.files import write_whole
from attention_jax.reports.benchmark import growths
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Estimate, Ratio, Table, show
from attention_jax.reports.tables import as_markdown
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.tasks.benchmark import (
    attention,
    corpora,
    decoding,
    gpu,
    regression,
    scaling,
    starting,
    sweeping,
    training,
)
from attention_jax.tasks.benchmark.peers import Peers
from attention_jax.tasks.benchmark.rounds import Growth, Row
from attention_jax.tasks.benchmark.tools import Tools
from attention_jax.tasks.benchmark.training import describe_step
from attention_jax.terminal import put
from attention_jax.training.progress import tell

Measure = Callable[[ConfigDict, Tools], Iterator[Row | Growth]]
PARTS: dict[str, Measure] = {
    "train": training.measure,
    "decode": decoding.measure,
    "attention": attention.measure,
    "start": starting.measure_starts,
    "sweep": sweeping.measure,
    "kernel_regression": regression.measure,
    "translate": starting.measure_translation,
    "corpora": corpora.measure,
    "scaling": scaling.measure,
    "gpu": gpu.measure,
}
HOME = Path(__file__).parents[1]
LAUNCHER = (sys.executable, "-m", "attention_jax.launcher")
NOTE = (
    "Medians over rounds, in each of which ours and the others are measured in turn. A ratio says how many times "
    "better ours is than the best of the others: the geometric mean of the rounds' ratios with its 95% interval."
)


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    for key, asked, known in (("parts", config.parts, PARTS), ("gpu.parts", config.gpu.parts, gpu.PARTS)):
        for name in asked:
            if name not in known:
                raise UserError(f"config.{key}: no part {name!r}: choose of {', '.join(known)}.")
    if config.rounds < 1:
        raise UserError(f"config.rounds={config.rounds}: needs 1 or more.")


def together(config: ConfigDict, how: str) -> Together:
    """Nothing is trained for its own sake: a run is its measurements."""
    del config, how
    return Together(lambda configs, runs: [measure(*one) for one in zip(configs, runs, strict=True)])


def measure(config: ConfigDict, run: Run) -> dict:
    """Every row of every part, told as it is found, and how cost grows; the tables are printed.

    A part that fails is told of, and the others are measured. After each part `table.md` has what was found so far.
    What an earlier measurement left is removed: runs that are finished and corpora that are imported take no time.
    """
    shutil.rmtree(run.subfolder("measured"), ignore_errors=True)
    tools = Tools(run.subfolder("measured"), Peers(HOME / "experiments" / "_peers", config.peers), LAUNCHER, HOME)
    found: dict[str, list[dict]] = {"rows": [], "growths": []}
    for part in config.parts:
        try:
            for one in PARTS[part](config, tools):
                kind, cells = ("rows", _cells) if isinstance(one, Row) else ("growths", _cells_of_growth)
                found[kind].append(one.as_dict())
                tell("  ".join(filter(None, map(show, cells(found[kind][-1])))))
        except Exception as error:  # a peer that fails, no memory: what was measured before took many minutes
            tell(f"{part}  the rest left out: {_line_of(error)}")
        write_whole(run.own / "table.md", _text(found))
    put(_text(found))
    return found


def _line_of(error: Exception) -> str:
    """What an error says, in a line."""
    line = (str(error).splitlines() or [""])[0]
    return line if isinstance(error, UserError) else f"{type(error).__name__}: {line}"


def evaluate(session: ConfigDict, config: ConfigDict, run: Run) -> dict:
    """Measure again."""
    del session
    return measure(config, run)


def figures(session: ConfigDict, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """How cost grows, where that was measured."""
    del session, config
    return [growths(result["growths"], run.subfolder("figures") / "growth.png")] if result["growths"] else []


def tables(session: ConfigDict, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """Every row, ours beside the best of the others, and the exponents of what grows."""
    del session, config, run
    return _tables(result)


def _tables(found: Mapping[str, Any]) -> list[Table]:
    rows = Table(
        "Measured side by side",
        ("part", "what", "unit", "ours", "others", "ratio"),
        [_cells(row) for row in found["rows"]],
        NOTE,
    )
    powers = Table(
        "How cost grows",
        ("part", "what", "with", "sizes", "expected", "exponent"),
        [_cells_of_growth(growth) for growth in found["growths"]],
        "Exponents p of value = c · size^p by least squares on logarithms, with 95% intervals.",
    )
    return [table for table in (rows, powers) if table.rows]


def _text(found: Mapping[str, Any]) -> str:
    return "\n".join(map(as_markdown, _tables(found)))


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    others = ", ".join(f"{name} {show(value)}" for name, value in row["others"].items())
    others += f" ({row['note']})" if row["note"] else ""
    ratio = row["ratio"] and Ratio(*row["ratio"])
    return row["part"], row["what"], row["unit"], row["ours"], others, ratio


def _cells_of_growth(growth: Mapping[str, Any]) -> tuple[object, ...]:
    sizes = f"{min(growth['sizes']):,} to {max(growth['sizes']):,}"
    return growth["part"], growth["what"], growth["of"], sizes, growth["expected"], Estimate(*growth["exponent"])


EXPERIMENT = Experiment(
    together=together,
    evaluate=evaluate,
    describe=describe_step,
    figures=figures,
    tables=tables,
    check=check,
    steps=lambda config: 1,
    metric=lambda config: "seconds",
)
