"""How far a model reaches: how its attention spreads as inputs grow, what it holds of them, and a sweep's conclusions.

Lengths are told as multiples of the trained one.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from attention_jax import stopping
from attention_jax.errors import UserError
from attention_jax.evaluation.by_group import PARTS, OfSeed, Scores, answer, gather, interval, kept, orders_by_length
from attention_jax.models.language_model import LanguageModel
from attention_jax.reports.conclusion import Conclusion, FinishedCell
from attention_jax.reports.extrapolation import length_curves, length_table
from attention_jax.reports.figures import Figure, Line
from attention_jax.reports.heads import PANELS
from attention_jax.reports.page import Estimate, Table
from attention_jax.tasks.language_model.algorithmic import held_out
from attention_jax.tasks.language_model.model import Texts, statistics_of
from attention_jax.tasks.language_model.session import Session
from attention_jax.tasks.needs import held_bytes
from attention_jax.training.placement import everywhere, whole
from attention_jax.training.state import Variables

TIMES = "times the trained length"
OTHER_TEXTS = "All are measured on the same texts: intervals do not tell how much others would change."
ACCURACY = (
    "{} by length, means over seeds in their 95% intervals; the dashed line is the trained length. " + OTHER_TEXTS
)
SPREAD = (
    "What the weights of tokens that predict an answer say, by length: means over layers, heads and "
    "config.statistics.rows texts, the same for every seed and setting, and over seeds in their 95% intervals, which "
    "do not tell how much other texts would change. Weights that are even over n tokens have an entropy of ln n."
)
FRONTIER = (
    "Recall at the trained length, by the bytes that a model holds of an input of that length to go on with: a line a "
    f"mixer, a point a setting, means over seeds in their 95% intervals. {OTHER_TEXTS}"
)


def require_usable(config: ConfigDict) -> None:
    """Raise UserError for values of `config.statistics` that cannot be used."""
    if config.statistics.rows < 0:
        raise UserError(f"config.statistics.rows={config.statistics.rows}: needs 0 or more.")


def held_of_input(model: LanguageModel, length: int) -> int:
    """How many bytes a model holds of an input of `length` tokens in order to read on: keys and values, or a state."""
    of_each, of_any = held_bytes(model)
    return of_any + length * of_each


def statistics_by_length(session: Session, variables: Variables, config: ConfigDict) -> dict[str, dict[str, float]]:
    """Entropy, distance and weight on the first token by length, of `config.statistics.rows` held-out texts of each.

    Means over layers, heads and the tokens that predict an answer. No map of weights is made. Nothing for 0 rows, and
    for a model that does not attend.
    """
    rows, model = config.statistics.rows, session.evaluated_model
    if not rows or not model.layer.mixing.attends:
        return {}
    found = {}
    for length in session.source.lengths:
        stopping.poll()
        texts = everywhere(held_out(config.data, length, rows), variables)
        found[str(length)] = whole(_of_answers(model, variables, texts))
    return {name: {length: float(means[name]) for length, means in found.items()} for name in PANELS}


@functools.partial(jax.jit, static_argnames="model")
def _of_answers(model: LanguageModel, variables: Variables, texts: Texts) -> dict[str, Float[Array, ""]]:
    found = statistics_of(model, variables, texts, top=0)._asdict()
    return {name: jnp.mean(jnp.mean(found[name], axis=(1, 2)), where=texts.is_counted) for name in PANELS}


def conclude(config: ConfigDict, cells: Sequence[FinishedCell], folder: Path, palette: Mapping[str, str]) -> Conclusion:
    """Curves by length, mean reciprocal ranks and orders of settings over seeds; the frontier of recall."""
    del config
    scores = gather([(cell.setting, cell.group, cell.result) for cell in cells], _of_seed)
    done = {cell.setting: cell for cell in cells if cell.result["status"] != "diverged"}
    trained = {(cell.setting, cell.group): cell.config.data.length for cell in cells}
    baselines, measures = {cell.group: cell.baseline for cell in cells}, list(_members(cells)[0]["curves"])
    result = answer(scores, baselines) | {"by_length": orders_by_length(scores, baselines)}
    lines = {name: _by_group(result["curves"], name, trained) for name in (*measures, *_named(PANELS))}
    drawn = [accuracy_figure(lines[name], name, folder, palette) for name in measures]
    if spread := _spread(lines):
        drawn.append(spread_figure(spread, folder, palette))
    if frontier := _frontier(scores, done, measures[0]):
        result["frontier"] = frontier
        drawn.append(_frontier_figure(frontier, measures[0], folder))
    differences = length_table(result["by_length"], measures[0], baselines)
    return Conclusion(result, drawn, [*(_length_table(lines[name], name) for name in measures), differences])


def accuracy_figure(
    lines: Mapping[str, Mapping[str, Line]], measure: str, folder: Path, palette: Mapping[str, str]
) -> Figure:
    """A measure by length: a panel a task, a line a setting."""
    said = measure.replace("_", " ")
    path, caption = folder / f"reach_{measure}.png", ACCURACY.format(said.capitalize())
    return length_curves(lines, 1, path, ylabel=said, caption=caption, palette=palette, **_by_times(lines))


def spread_figure(lines: Mapping[str, Mapping[str, Line]], folder: Path, palette: Mapping[str, str]) -> Figure:
    """What weights say by length: a row of panels a task, a line a setting that attends."""
    told: dict[str, Any] = {"ylabel": "", "caption": SPREAD, "palette": palette, **_by_times(lines)}
    return length_curves(lines, 1, folder / "spread.png", most_columns=len(PANELS), **told)


def by_times(line: Line, trained: int) -> Line:
    """A line by length as one by multiples of the trained length."""
    lengths, mean, low, high = line
    return np.asarray(lengths) / trained, mean, low, high


def _by_times(lines: Mapping[str, Mapping[str, Line]]) -> dict[str, Any]:
    return {"xlabel": TIMES, "log_x": True, "ticks": _times(lines)}


def _times(lines: Mapping[str, Mapping[str, Line]]) -> list[float]:
    """Every length of some lines, in order."""
    return sorted({float(x) for series in lines.values() for line in series.values() for x in line[0]})


def _of_seed(member: Mapping[str, Any]) -> OfSeed:
    lead = next(iter(member["curves"]))
    return OfSeed({**member["curves"], **_named(member["statistics"])}, member["area"][lead])


def _named(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Statistics by the names that their metrics have."""
    return {f"statistics.{name}": found for name, found in statistics.items()}


def _members(cells: Sequence[FinishedCell]) -> list[Mapping[str, Any]]:
    return [member for cell in cells if cell.result["status"] != "diverged" for member in cell.result["members"]]


def _by_group(
    curves: Mapping[str, Mapping[str, Any]], measure: str, trained: Mapping[tuple[str, str], int]
) -> dict[str, dict[str, Line]]:
    """The lines of a measure by group and setting, of the settings that have it; the leading one has no name there."""
    found: dict[str, dict[str, Line]] = {}
    for name, groups in curves.items():
        for group, of_lead in groups.items():
            parts = of_lead.get(measure, None if measure in _named(PANELS) else of_lead)
            if parts is not None:
                line = (of_lead["length"], *(parts[part] for part in PARTS))
                found.setdefault(group, {})[name] = by_times(line, trained[name, group])
    return found


def _spread(lines: Mapping[str, Mapping[str, dict[str, Line]]]) -> dict[str, dict[str, Line]]:
    """A panel a group and statistic, of the groups in which a setting attends."""
    told = _named(PANELS)
    groups = next(lines[name] for name in told)
    return {f"{group}\n{label}".strip(): lines[name][group] for group in groups for name, label in told.items()}


def _frontier(scores: Scores, done: Mapping[str, FinishedCell], measure: str) -> dict[str, dict[str, Any]]:
    """A measure at the trained length by bytes held, by group and mixer.

    Empty unless settings differ in these alone, in more than one mixer, and that length is measured.
    """
    places = {name: (cell.config.model.mixer, cell.result["cost"]["held_bytes"]) for name, cell in done.items()}
    if not all(1.0 in cell.config.data.factors for cell in done.values()):
        return {}
    if len({mixer for mixer, _ in places.values()}) < 2 or len({*places.values()}) < len(places):
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name, (mixer, held) in sorted(places.items(), key=lambda place: place[1]):
        length = str(done[name].config.data.length)
        for group in scores[name]:
            line = found.setdefault(group, {}).setdefault(mixer, {part: [] for part in ("bytes", *PARTS)})
            values = [one.curves[measure][length] for one in kept(scores[name][group])]
            for part, value in {"bytes": held, **interval(values, measure)}.items():
                line[part].append(value)
    return found


def _frontier_figure(frontier: Mapping[str, Mapping[str, Any]], measure: str, folder: Path) -> Figure:
    panels = {
        group: {mixer: (line["bytes"], *(line[part] for part in PARTS)) for mixer, line in lines.items()}
        for group, lines in frontier.items()
    }
    said = measure.replace("_", " ")
    told: dict[str, Any] = {"xlabel": "bytes held of an input", "ylabel": said, "log_x": True, "caption": FRONTIER}
    return length_curves(panels, None, folder / "frontier.png", **told)


def _length_table(lines: Mapping[str, Mapping[str, Line]], measure: str) -> Table:
    """A measure of every group and setting at every length."""
    times, rows = _times(lines), []
    for group, series in lines.items():
        for name, (x, *parts) in series.items():
            at = {float(one): Estimate(*values) for one, *values in zip(x, *parts, strict=True)}
            rows.append((group, name, *(at.get(one) for one in times)))
    title = f"{measure.replace('_', ' ').capitalize()} at so many {TIMES}"
    return Table(title, ("task", "setting", *(f"×{one:g}" for one in times)), rows)
