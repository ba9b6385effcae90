"""What all cells of a sweep over position encodings say together: curves, ranks, orders, and portraits of encodings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.evaluation.extrapolation import kendall, reciprocal_ranks
from attention_jax.evaluation.significance import paired_t
from attention_jax.evaluation.statistics import mean_interval
from attention_jax.modules.mixers import ATTENTION
from attention_jax.ops.positions import Encoding, Spec
from attention_jax.reports.extrapolation import attention_maps, distance_curves, images, length_curves
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table
from attention_jax.runs.experiment import Conclusion, FinishedCell

# Mean reciprocal ranks on algorithmic tasks beyond the trained length, at 107M parameters (Kazemnejad et al. 2023).
PUBLISHED = {"none": 0.69, "t5": 0.55, "alibi": 0.50, "rotary": 0.33, "sinusoidal": 0.22}
SHOWN = 64  # positions of an encoding's portrait

Scores = dict[str, dict[str, dict[int, dict]]]  # encoding → task → seed → what was measured


def conclude(config: ConfigDict, cells: Sequence[FinishedCell], folder: Path, lower: Sequence[str]) -> Conclusion:
    """Curves, mean reciprocal ranks and orders over seeds; measures in `lower` are the better the less they are."""
    scores = _gathered(cells)
    measures = list(next(iter(next(iter(next(iter(scores.values())).values())).values()))["curves"])
    lead = measures[0]
    sign = -1 if lead in lower else 1
    curves = {
        name: {task: _curve(list(seeds.values()), measures) for task, seeds in tasks.items()}
        for name, tasks in scores.items()
    }
    published = PUBLISHED if config.data.source == "algorithmic" else {}
    ranks = _ranks(scores, lead, sign)
    orders = {task: _order(scores, task, lead, sign) for task in dict.fromkeys(t for ts in scores.values() for t in ts)}
    mrr = {name: _interval(values) for name, values in ranks.items()}
    result = {
        "curves": curves,
        "mrr": mrr,
        "orders": {
            **orders,
            "mrr": sorted(mrr, key=lambda name: -mrr[name]["mean"]),
            "published": _published(ranks, published),
        },
    }
    figures = [*_curve_figures(curves, measures, config, lower, folder), *_portraits(cells, folder)]
    return Conclusion(result, figures, _tables(orders, mrr, published, lead))


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


def _gathered(cells: Sequence[FinishedCell]) -> Scores:
    scores: Scores = {}
    for cell in cells:
        found = scores.setdefault(name_of(cell.config), {}).setdefault(cell.config.data.task, {})
        found |= dict(zip(cell.result["seeds"], cell.result.get("members") or [cell.result], strict=True))
    return scores


def _interval(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    return dict(zip(("mean", "low", "high"), mean_interval(values), strict=True))


def _curve(members: Sequence[Mapping], measures: Sequence[str]) -> dict[str, Any]:
    """Lengths with means and intervals of the first measure, and of the others by name."""
    lengths = list(members[0]["curves"][measures[0]])

    def line(measure):
        ends = [mean_interval([member["curves"][measure][length] for member in members]) for length in lengths]
        return dict(zip(("mean", "low", "high"), map(list, zip(*ends, strict=True)), strict=True))

    return {"length": [*map(int, lengths)], **line(measures[0]), **{name: line(name) for name in measures[1:]}}


def _ranks(scores: Scores, lead: str, sign: int) -> dict[str, np.ndarray]:
    """Each encoding's mean reciprocal rank over the tasks, of each seed that all encodings have on all tasks."""
    tasks = sorted(set.intersection(*(set(tasks) for tasks in scores.values())))
    seeds = sorted(set.intersection(*(set(found[task]) for found in scores.values() for task in tasks)))
    heights = np.array(
        [[[sign * found[task][seed]["area"][lead] for seed in seeds] for task in tasks] for found in scores.values()]
    )
    return dict(zip(scores, reciprocal_ranks(heights), strict=True)) if heights.size else {}


def _order(scores: Scores, task: str, lead: str, sign: int) -> list[dict[str, Any]]:
    """Encodings on a task, the best first, each with its paired difference to the first of the config's."""
    areas = {
        name: {seed: member["area"][lead] for seed, member in found[task].items()}
        for name, found in scores.items()
        if task in found
    }
    first = next(iter(areas.values()))
    rows = []
    for name, own in areas.items():
        common = [seed for seed in own if seed in first]
        pair = [[side[seed] for seed in common] for side in (own, first)]
        row = {"encoding": name, **_interval(list(own.values()))}
        if own is not first and len(common) > 1:
            difference = _interval(np.diff(pair[::-1], axis=0)[0])
            row |= {"difference": difference, "p": paired_t(*pair)}
        rows.append(row)
    return sorted(rows, key=lambda row: -sign * row["mean"])


def _published(ranks: Mapping[str, np.ndarray], published: Mapping[str, float]) -> dict[str, Any]:
    """How the order of ranks agrees with the published one: Kendall's τ, over seeds."""
    common = [name for name in published if name in ranks]
    if len(common) < 3:
        return {}
    taus = [
        kendall([ranks[n][s] for n in common], [published[n] for n in common]) for s in range(len(ranks[common[0]]))
    ]
    return {"mrr": {name: published[name] for name in common}, "kendall_tau": _interval(taus)}


def _curve_figures(
    curves: Mapping[str, Any], measures: Sequence[str], config: ConfigDict, lower: Sequence[str], folder: Path
) -> list[Figure]:
    tasks = list(dict.fromkeys(task for found in curves.values() for task in found))
    drawn = []
    for measure in measures:
        panels = {}
        for task in tasks:
            panels[task] = {
                name: (found[task]["length"], *(found[task].get(measure, found[task])[part] for part in PARTS))
                for name, found in curves.items()
                if task in found
            }
        path = folder / f"extrapolation_{measure}.png"
        drawn.append(length_curves(panels, config.data.length, path, ylabel=measure, log_y=measure in lower))
    return drawn


PARTS = ("mean", "low", "high")


def _portraits(cells: Sequence[FinishedCell], folder: Path) -> list[Figure]:
    """What the encodings of the first task's first seed look like once trained, and where they make attention look."""
    firsts: dict[str, FinishedCell] = {}
    for cell in cells:
        firsts.setdefault(name_of(cell.config), cell)
    kept = {name: _load(cell.path / "encoding.npz") for name, cell in firsts.items()}
    matrices = [(name, found["matrix"].T) for name, found in kept.items() if "matrix" in found]
    heads = [
        (f"{name}, head {head}: {matrix.min():.2g} to {matrix.max():.2g}", matrix)
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
        drawn.append(distance_curves(alike, folder / "similarity.png", caption, "similarity"))
    attention = {name: _load(cell.path / "attention.npz") for name, cell in firsts.items()}
    attending = {name: found for name, found in attention.items() if found}
    return [*drawn, attention_maps(attending, folder / "attention.png")] if attending else drawn


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as found:
        return dict(found)


def _tables(
    orders: Mapping[str, list[dict]], mrr: Mapping[str, dict], published: Mapping[str, float], lead: str
) -> list[Table]:
    columns = ("task", "encoding", f"area of {lead}", "95% from", "to", "difference", "from", "to ", "p, paired t")
    rows = [
        (task, row["encoding"], row["mean"], row["low"], row["high"], *_difference(row))
        for task, order in orders.items()
        for row in order
    ]
    note = "Areas are mean heights of the curves from the trained length on; differences are to the config's first."
    ranked = sorted(mrr.items(), key=lambda item: -item[1]["mean"])
    return [
        Table(
            "Mean reciprocal rank over the tasks, from the trained length on",
            ("encoding", "mean", "95% from", "to", "published"),
            [(name, *found.values(), published.get(name, "")) for name, found in ranked],
        ),
        Table(f"{lead} from the trained length on, by task", columns, rows, note),
    ]


def _difference(row: Mapping[str, Any]) -> tuple:
    return (*row["difference"].values(), row["p"]) if "difference" in row else ("",) * 4
