"""Conclusions from all cells of a sweep over position encodings: curves, ranks, orders, and portraits of encodings."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.evaluation.by_group import (
    OfSeed,
    Scores,
    answer,
    gather,
    groups_of,
    interval,
    measured_of,
    measures_of,
    orders_by_length,
)
from attention_jax.evaluation.comparison import ranks, shared_by_all
from attention_jax.evaluation.extrapolation import area, kendall
from attention_jax.evaluation.metrics import metric
from attention_jax.files import read_arrays
from attention_jax.modules.mixers import ATTENTION
from attention_jax.ops.positions import binary
from attention_jax.reports.conclusion import Conclusion, FinishedCell
from attention_jax.reports.extrapolation import (
    attention_maps,
    distance_curves,
    images,
    length_curves,
    length_table,
    order_table,
    panels,
)
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Estimate, Table
from attention_jax.tasks.language_model.source import Curves, Source

# Mean reciprocal ranks on algorithmic tasks beyond the trained length, at 107M parameters (Kazemnejad et al. 2023).
PUBLISHED = {"none": 0.69, "t5": 0.55, "alibi": 0.50, "rotary": 0.33, "sinusoidal": 0.22}
BEYOND = "from the trained length on"


def with_areas(source: Source, curves: Curves) -> dict[str, Any]:
    """The curves, and the mean height of each from the trained length on."""
    beyond = [length for length in source.lengths if length >= source.trained]
    heights = {name: area(beyond, [curve[str(length)] for length in beyond]) for name, curve in curves.items()}
    return {"curves": curves, "area": heights}


def conclude(config: ConfigDict, cells: Sequence[FinishedCell], folder: Path, palette: Mapping[str, str]) -> Conclusion:
    """Curves, mean reciprocal ranks and orders of settings, over seeds."""
    done = [cell for cell in cells if cell.result["status"] != "diverged"]
    lead, *others = done[0].result["curves"]
    every = [(cell.setting, cell.group, cell.result) for cell in cells]
    scores = gather(every, lambda member: OfSeed(member["curves"], member["area"][lead]))
    baselines = {cell.group: cell.baseline for cell in cells}
    result = answer(scores, baselines)
    trained = {cell.config.data.length for cell in cells}
    published = {}
    if config.data.source == "algorithmic":
        of_seed = functools.partial(_beyond, min(trained), lead)
        published = published_order(gather(every, of_seed))
    shared = shared_by_all(measured_of(scores))
    ranked = _rank_table(result["mrr"], published.get("mrr", {}), lead, shared)
    tables = [ranked] if published or len(shared[0]) > 1 else []
    if f"area.{lead}" not in (config.sweep.metric or f"area.{lead}"):  # otherwise the sweep's own table has it
        title, height = f"{lead} {BEYOND}, by task", f"area of {lead}"
        tables.append(order_table(result["orders"], groups_of(scores), title, "setting", height, baselines))
    result["orders"]["published"] = published
    result["by_length"] = orders_by_length(scores, baselines)
    tables.append(length_table(result["by_length"], lead, baselines))
    firsts: dict[str, FinishedCell] = {}
    for cell in done:
        firsts.setdefault(cell.setting, cell)
    lines = [_curve_figure(result["curves"], measure, trained, folder, palette) for measure in (lead, *others)]
    return Conclusion(result, [*lines, *_portraits(firsts, folder, palette)], tables)


def name_of(config: ConfigDict) -> str:
    """The setting's name: its encoding, or its mixer if that is not attention."""
    return config.model.positions if config.model.mixer == ATTENTION else config.model.mixer


def _beyond(trained: int, lead: str, member: Mapping[str, Any]) -> OfSeed:
    """A seed's curves, and the mean height of the leading one beyond the trained length."""
    curve = member["curves"][lead]
    lengths = [length for length in curve if int(length) > trained] or list(curve)
    return OfSeed(member["curves"], area([int(length) for length in lengths], [curve[length] for length in lengths]))


def published_order(scores: Scores) -> dict[str, Any]:
    """Ranks beyond the trained length among the encodings with published ranks, and Kendall's τ of the two orders.

    τ is over seeds. The published ranks are by whole outputs that are right, which models this small hardly write.
    Nothing where there are fewer than three such encodings.
    """
    common = [name for name in PUBLISHED if name in scores]
    if len(common) < 3:
        return {}
    settings = [measured for measured in measured_of(scores) if measured.setting in common]
    if not (ours := ranks(measures_of(scores)[0], settings)):
        return {}
    theirs = [PUBLISHED[name] for name in common]
    taus = [kendall(of_seed, theirs) for of_seed in zip(*(ours[name] for name in common), strict=True)]
    return {
        "mrr": {name: {**interval(ours[name], "mrr"), "published": PUBLISHED[name]} for name in common},
        "kendall_tau": interval(taus, "kendall_tau"),
    }


def _curve_figure(curves: Mapping, measure: str, trained: set[int], folder: Path, palette: Mapping[str, str]) -> Figure:
    return length_curves(
        panels(curves, measure),
        min(trained) if len(trained) == 1 else None,
        folder / f"extrapolation_{measure}.png",
        ylabel=measure.replace("_", " "),
        log_y=not metric(measure).more_is_better,
        palette=palette,
    )


def _portraits(firsts: Mapping[str, FinishedCell], folder: Path, palette: Mapping[str, str]) -> list[Figure]:
    """Portraits of the trained encoding of each setting's first cell, and maps of its attention."""
    kept = {name: read_arrays(cell.path / "encoding.npz") for name, cell in firsts.items()}
    matrices = _beside_binary({name: found["matrix"].T for name, found in kept.items() if "matrix" in found})
    heads = [
        (f"{name}, head {head}: {_range_of(matrix)}", matrix)
        for name, found in kept.items()
        for head, matrix in enumerate(found.get("bias", ())[:4])
    ]
    alike = {name: (np.arange(len(f["similarity"])), f["similarity"]) for name, f in kept.items() if "similarity" in f}
    drawn = []
    if matrices:
        drawn.append(
            images(
                matrices,
                folder / "encodings.png",
                "The vector that is added to the embedding at each position, after training.",
                columns=min(4, len(matrices)),
                xlabel="position",
                ylabel="feature",
                is_signed=True,
            )
        )
    if heads:
        drawn.append(
            images(
                heads,
                folder / "biases.png",
                "The bias that is added to each head's scores, after training; Shaw's is for a query and keys of ones.",
                columns=4,
                xlabel="key",
                ylabel="query",
                is_signed=True,
            )
        )
    if alike:
        caption = "How similar positions make two tokens, by their distance; the largest value is one."
        drawn.append(distance_curves(alike, folder / "similarity.png", caption, "similarity", palette))
    attention = {name: read_arrays(cell.path / "attention.npz") for name, cell in firsts.items()}
    attending = {name: found for name, found in attention.items() if found}
    return [*drawn, attention_maps(attending, folder / "attention.png")] if attending else drawn


def _range_of(bias: np.ndarray) -> str:
    """The least and the largest bias of a key that a query may attend to; those after it are drawn as 0."""
    seen = bias[np.tril_indices_from(bias)]
    return f"{seen.min() + 0:.2g} to {seen.max() + 0:.2g}"


def _beside_binary(matrices: Mapping[str, np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """The matrices; before sinusoids, the binary digits, of which they are the smooth counterpart."""
    shown = dict(matrices)
    if (sines := matrices.get("sinusoidal")) is not None:
        shown.setdefault("binary", np.asarray(binary(jnp.arange(sines.shape[1]), sines.shape[0])).T)
    first = [name for name in ("binary", "sinusoidal") if name in shown]
    return [(name, shown[name]) for name in dict.fromkeys((*first, *shown))]


def _rank_table(
    mrr: Mapping[str, dict], published: Mapping[str, dict], lead: str, over: tuple[list[str], list[int]]
) -> Table:
    ranked = sorted(mrr.items(), key=lambda item: -item[1]["mean"])
    columns: tuple[str, ...] = ("setting", "mean reciprocal rank")
    rows: list[tuple] = [(name, Estimate(**found)) for name, found in ranked]
    note = f"Over {', '.join(over[0])}, and seeds {', '.join(map(str, over[1]))}, which all settings have."
    if published:
        columns += ("among these", "published")
        rows = [(*row, *_among(published.get(row[0]))) for row in rows]
        note += (
            f" “Among these”: ranks of {lead} beyond the trained length among the encodings that have a published one, "
            "which is of whole outputs that are right."
        )
    best = {(row, 1) for row, (_, found) in enumerate(ranked) if found["mean"] == ranked[0][1]["mean"]}
    return Table(f"Mean reciprocal rank over the tasks, {BEYOND}", columns, rows, note, best=best)


def _among(found: Mapping[str, float] | None) -> tuple:
    """The rank among encodings with a published rank, and the published one."""
    return (Estimate(found["mean"], found["low"], found["high"]), found["published"]) if found else (None, None)
