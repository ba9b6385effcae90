"""What all cells of a sweep over position encodings say together: curves, ranks, orders, and portraits of encodings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.evaluation.extrapolation import area, kendall
from attention_jax.evaluation.metrics import metric
from attention_jax.modules.mixers import ATTENTION
from attention_jax.ops.positions import Encoding, Spec, binary
from attention_jax.reports.extrapolation import attention_maps, distance_curves, images, length_curves
from attention_jax.reports.figures import Figure, colours
from attention_jax.reports.page import Table
from attention_jax.runs.experiment import Conclusion, FinishedCell
from experiments._comparison import (
    Measured,
    Scores,
    answer,
    baseline_of,
    gather,
    interval,
    order_table,
    panels,
    ranks,
    settings_of,
    shared_by_all,
    tasks_of,
)

# Mean reciprocal ranks on algorithmic tasks beyond the trained length, at 107M parameters (Kazemnejad et al. 2023).
PUBLISHED = {"none": 0.69, "t5": 0.55, "alibi": 0.50, "rotary": 0.33, "sinusoidal": 0.22}
SHOWN = 64  # positions of an encoding's portrait
BEYOND = "from the trained length on"


def conclude(config: ConfigDict, cells: Sequence[FinishedCell], folder: Path) -> Conclusion:
    """Curves, mean reciprocal ranks and orders over seeds."""
    done = [cell for cell in cells if cell.result["status"] != "diverged"]
    lead, *others = done[0].result["curves"]
    names = settings_of(config, cells, name_of(config))

    def scores_of(value):
        measured = lambda cell, member: Measured(member["curves"], value(cell, member))  # noqa: E731
        return gather(config, cells, names, "", measured)

    scores = scores_of(lambda cell, member: member["area"][lead])
    baseline = baseline_of(config, cells, names)
    result = answer(scores, baseline)
    published = _published(config, scores_of(lambda cell, member: _beyond(cell.config, member["curves"][lead])))
    tables = [
        _rank_table(result["mrr"], published.get("mrr", {}), lead, shared_by_all(scores)),
        order_table(
            result["orders"], tasks_of(scores), f"{lead} {BEYOND}, by task", "encoding", f"area of {lead}", baseline
        ),
    ]
    result["orders"]["published"] = published
    firsts: dict[str, FinishedCell] = {}
    for name, cell in zip(names, cells, strict=True):
        if cell.result["status"] != "diverged":
            firsts.setdefault(name, cell)
    trained = {cell.config.data.length for cell in cells}
    palette = colours(scores)
    lines = [_curve_figure(result["curves"], measure, trained, folder, palette) for measure in (lead, *others)]
    return Conclusion(result, [*lines, *_portraits(firsts, folder, palette)], tables)


def name_of(config: ConfigDict) -> str:
    """The encoding, or what stands in attention's place."""
    return config.model.positions if config.model.mixer == ATTENTION else config.model.mixer


def portrait(record: Encoding, sizes: Spec, params: Any) -> dict[str, np.ndarray]:
    """What an encoding does to its first positions.

    `matrix` [T, width] is added to embeddings, `bias` [heads, T, T] to scores, and `similarity` [T] is of two tokens
    that are alike but for their distance: their score's part that positions make, its largest value one.
    """
    positions = jnp.arange(min(SHOWN, record.max_length(sizes) or SHOWN))[None]
    alike = jnp.ones((1, sizes.heads, positions.shape[-1], sizes.head_size))
    found: dict[str, Any] = {}
    if record.add is not None:
        matrix = record.add(params, jnp.zeros((1, positions.shape[-1], sizes.width)), positions)[0]
        found["matrix"], found["similarity"] = matrix, _by_distance(matrix @ matrix.T)
    if record.rotate is not None:
        turned = record.rotate(params, alike, positions[:, None])[0, 0]
        found["similarity"] = _by_distance(turned @ turned.T)
    if record.bias is not None:
        bias = jnp.broadcast_to(
            record.bias(params, alike, positions, positions), (1, *alike.shape[1:3], alike.shape[2])
        )
        found["bias"] = jnp.where(jnp.tri(bias.shape[-1], dtype=bool), bias[0], 0)
        found["similarity"] = _by_distance(jnp.exp(bias[0] - bias[0].max(axis=(-1, -2), keepdims=True)).mean(0))
    return {name: np.asarray(array) for name, array in found.items()}


def _by_distance(scores: jax.Array) -> np.ndarray:
    """The mean score of a query and the key 0, 1, … tokens before it, the largest made one."""
    kept = np.asarray(scores)
    means = np.array([np.diagonal(kept, -distance).mean() for distance in range(len(kept))])
    return means / np.abs(means).max()


def _beyond(config: ConfigDict, curve: Mapping[str, float]) -> float:
    """The mean height of a curve past the trained length."""
    lengths = [length for length in curve if int(length) > config.data.length] or list(curve)
    return area([int(length) for length in lengths], [curve[length] for length in lengths])


def _published(config: ConfigDict, scores: Scores) -> dict[str, Any]:
    """Ranks among the encodings whose ranks were published, beyond the trained length, and how the orders agree.

    That is Kendall's τ, over seeds. Theirs rank whole outputs that are right, which models this small hardly write.
    """
    common = [name for name in PUBLISHED if name in scores]
    if config.data.source != "algorithmic" or len(common) < 3:
        return {}
    if not (ours := ranks({name: scores[name] for name in common})):
        return {}
    theirs = [PUBLISHED[name] for name in common]
    taus = [kendall(of_seed, theirs) for of_seed in zip(*ours.values(), strict=True)]
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
    """What the encoding of each setting's first cell looks like once trained, and where it makes attention look."""
    kept = {name: _load(cell.path / "encoding.npz") for name, cell in firsts.items()}
    matrices = _beside_binary({name: found["matrix"].T for name, found in kept.items() if "matrix" in found})
    heads = [
        (f"{name}, head {head}: {matrix.min() + 0:.2g} to {matrix.max() + 0:.2g}", matrix)
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
                "What is added to the embeddings at each position, once trained.",
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
                "The bias that each head's scores get, once trained; Shaw's for a query and keys of ones.",
                columns=4,
                xlabel="key",
                ylabel="query",
                is_signed=True,
            )
        )
    if alike:
        caption = "How alike positions make two tokens, by their distance, its largest value one."
        drawn.append(distance_curves(alike, folder / "similarity.png", caption, "similarity", palette))
    attention = {name: _load(cell.path / "attention.npz") for name, cell in firsts.items()}
    attending = {name: found for name, found in attention.items() if found}
    return [*drawn, attention_maps(attending, folder / "attention.png")] if attending else drawn


def _beside_binary(matrices: Mapping[str, np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """The matrices, and beside sinusoids the binary digits whose smooth kin they are."""
    shown = dict(matrices)
    if (sines := matrices.get("sinusoidal")) is not None:
        shown.setdefault("binary", np.asarray(binary(jnp.arange(sines.shape[1]), sines.shape[0])).T)
    first = [name for name in ("binary", "sinusoidal") if name in shown]
    return [(name, shown[name]) for name in dict.fromkeys((*first, *shown))]


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as found:
        return dict(found)


def _rank_table(
    mrr: Mapping[str, dict], published: Mapping[str, dict], lead: str, over: tuple[list[str], list[int]]
) -> Table:
    ranked = sorted(mrr.items(), key=lambda item: -item[1]["mean"])
    columns: tuple[str, ...] = ("encoding", "mean", "from", "to")
    rows: list[tuple] = [(name, *found.values()) for name, found in ranked]
    note = f"Over {', '.join(over[0])}, and seeds {', '.join(map(str, over[1]))}, which all encodings have."
    if published:
        columns += ("among these", "among these from", "among these to", "published")
        rows = [(*row, *(published[row[0]].values() if row[0] in published else ("",) * 4)) for row in rows]
        note += (
            f" “Among these”: ranks of {lead} beyond the trained length among the encodings that have a published one, "
            "which is of whole outputs that are right."
        )
    return Table(f"Mean reciprocal rank over the tasks, {BEYOND}", columns, rows, note)
