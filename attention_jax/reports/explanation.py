"""Whether attention explains: tables and figures of models, each with its numbers as a flat dict."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention_jax.reports.figures import Figure, colours, draw_bands, legend, log_scale, new_figure, save
from attention_jax.reports.maps import WordMap, word_maps
from attention_jax.reports.page import Estimate, Table
from attention_jax.reports.run import estimate

Models = Mapping[str, Mapping[str, Any]]  # name → its numbers, flat
WORDS = ("source", "target")  # what an archive of maps has beside maps
ERROR, TAU = "alignment_error_rate", "kendall_tau"
INTERVENTIONS = {
    "uniform": "all words alike",
    "permuted": "in a random order",
    "without_highest": "without the largest",
    "without_another": "without another",
}
ADVERSARY = {
    "jensen_shannon_of_weights": "Jensen–Shannon of weights",
    "total_variation_of_weights": "total variation of weights",
    "elsewhere": "largest weight elsewhere",
    ERROR: "alignment error rate",
    "total_variation": "total variation of predictions",
}


def result_tables(models: Models, epsilons: Sequence[float]) -> list[Table]:
    """Alignment, rank correlations, other weights, adversarial weights; means over seeds with 95% intervals."""
    return [
        _by_model(models, "alignment", ERROR, "Alignment error rate, by what says where a word comes from", ALIGNED),
        _by_model(models, "correlation", TAU, "Kendall's τ over source words, the mean over target words", ""),
        Table(
            "Other weights in place of attention's",
            ("model", "weights", "total variation of predictions", "likeliest word changed"),
            [
                (
                    name,
                    label,
                    *(estimate(found, f"intervention.{key}.{what}") for what in ("total_variation", "is_flipped")),
                )
                for name, found in models.items()
                for key, label in INTERVENTIONS.items()
            ],
            "Every layer's and head's attention to the source; the model is not trained again.",
        ),
        Table(
            "Adversarial weights",
            ("model", "ε", *ADVERSARY.values()),
            [
                (name, epsilon, *(estimate(found, f"adversary.{epsilon:g}.{what}") for what in ADVERSARY))
                for name, found in models.items()
                for epsilon in epsilons
            ],
            "As far from the model's own as a search found, where no word's prediction moves by more than ε in total "
            f"variation. The Jensen–Shannon divergence is at most ln 2 = {math.log(2):.3f}. {OF_A_LAYER}",
        ),
    ]


OF_A_LAYER = (
    "How often the largest weight is elsewhere, and alignment error rates, are of the mean over heads of the run's "
    "config.evaluate.alignment_layer."
)
ALIGNED = (
    "Each target word's largest value against its true source words. Attention is the mean over heads of the run's "
    "config.evaluate.alignment_layer."
)


def measure_figure(models: Models, path: Path) -> Figure:
    """Each model's alignment error rates, and its rank correlations, with intervals over seeds."""
    figure, axes = new_figure(1, 2, 4.6, 3.6)
    palette = colours(models)
    parts = (("alignment", ERROR, "alignment error rate"), ("correlation", TAU, "Kendall's τ"))
    for axis, (part, what, label) in zip(axes[0], parts, strict=True):
        columns = _columns(models, part, what)
        for index, (name, found) in enumerate(models.items()):
            shift = (index - (len(models) - 1) / 2) * 0.6 / len(models)
            _draw_points(axis, [estimate(found, f"{part}.{one}.{what}") for one in columns], shift, palette[name], name)
        axis.set_xticks(range(len(columns)), columns, rotation=35, ha="right", fontsize=8)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylim(bottom=0)
    legend(figure, axes[0, :1])
    return save(
        figure,
        path,
        "What says where a word comes from: its error against the true alignment, and how alike two measures order "
        "source words. Means over seeds with 95% intervals.",
    )


def _draw_points(axis, cells: Sequence[Estimate | str], shift: float, colour: str, name: str) -> None:
    known = [(place, cell) for place, cell in enumerate(cells) if isinstance(cell, Estimate)]
    places = [place + shift for place, _ in known]
    axis.plot(places, [cell.mean for _, cell in known], "o", markersize=4, color=colour, label=name)
    for place, (_, cell) in zip(places, known, strict=True):
        axis.plot([place, place], _ends(cell), color=colour, linewidth=1.2)


def _ends(cell: Estimate) -> tuple[float, float]:
    """The ends of its interval, or twice the mean where it has none."""
    low, high = (cell.mean if end is None else end for end in cell[1:])
    return low, high


def adversary_figure(models: Models, epsilons: Sequence[float], path: Path) -> Figure:
    """How far weights move, and how often the largest is elsewhere, by how much predictions may move."""
    figure, axes = new_figure(1, 2, 4.2, 3.0)
    palette = colours(models)
    order, drawn = sorted(epsilons), ("jensen_shannon_of_weights", "elsewhere")
    for axis, what in zip(axes[0], drawn, strict=True):
        lines = {}
        for name, found in models.items():
            cells = [estimate(found, f"adversary.{epsilon:g}.{what}") for epsilon in order]
            ends = [_ends(cell) for cell in cells if isinstance(cell, Estimate)]
            means = [cell.mean for cell in cells if isinstance(cell, Estimate)]
            lines[name] = (order, means, [low for low, _ in ends], [high for _, high in ends])
        draw_bands(axis, lines, palette)
        log_scale(axis, "x")
        axis.set_xlabel("ε: total variation of predictions, at most")
        axis.set_ylabel(ADVERSARY[what] + ("" if what == "elsewhere" else ", nats"))
    axes[0, 0].axhline(math.log(2), color="grey", linestyle="--", linewidth=0.8)
    axes[0, 0].set_ylim(0, 1.05 * math.log(2))
    axes[0, 1].set_ylim(bottom=0)
    legend(figure, axes[0, :1])
    return save(
        figure,
        path,
        "How far attention can move while predictions stay: means over words, layers and heads, and over seeds with "
        f"95% intervals. Dashed: ln 2, the most there is. {OF_A_LAYER}",
    )


def map_figure(kept: Mapping[str, np.ndarray], path: Path) -> Figure:
    """The maps of one sentence, a row a model; rows are divided by their sums, without what is below 0."""
    models = list(dict.fromkeys(key.partition("/")[0] for key in kept))
    of_models = [[key.partition("/")[2] for key in kept if key.startswith(f"{model}/")] for model in models]
    shown = [name for name in _all_of(of_models) if name not in WORDS]
    maps = []
    for model in models:
        source, target = (kept[f"{model}/{side}"].tolist() for side in WORDS)
        for name in shown:
            found = kept.get(f"{model}/{name}")
            blank = np.full((len(target), len(source)), np.nan)
            maps.append(WordMap(blank if found is None else _of_sum_one(found), target, source, f"{model}: {name}"))
    caption = "One sentence: its true links, and what each measure says of them, of each run's first seed."
    return word_maps(maps, path, caption, columns=len(shown), xlabel="source", ylabel="target")


def _of_sum_one(found: np.ndarray) -> np.ndarray:
    kept = np.maximum(found, 0)
    return kept / np.maximum(kept.sum(axis=-1, keepdims=True), 1e-30)


def _by_model(models: Models, part: str, what: str, title: str, note: str) -> Table:
    columns = _columns(models, part, what)
    rows = [(name, *(estimate(found, f"{part}.{one}.{what}") for one in columns)) for name, found in models.items()]
    return Table(title, ("model", *columns), rows, note)


def _columns(models: Models, part: str, what: str) -> list[str]:
    """What the models were measured by, in the order of the one with most."""
    found = [
        [key.split(".")[1] for key in flat if key.startswith(f"{part}.") and key.endswith(f".{what}")]
        for flat in models.values()
    ]
    return _all_of(found)


def _all_of(names: Sequence[Sequence[str]]) -> list[str]:
    """Every name once, in the order of those who have most."""
    return list(dict.fromkeys(name for each in sorted(names, key=len, reverse=True) for name in each))
