"""Figures and tables of induction heads over training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention_jax.reports.figures import Figure, colours, draw_bands, legend, new_figure, save
from attention_jax.reports.learning import learning_line
from attention_jax.reports.page import Table
from attention_jax.reports.run import Flat, estimate, title_of

PREFIX = "induction.prefix."
ROWS = {
    "loss of held-out rows, nats a token": "validation.loss",
    "prefix-matching score of the best head": "induction.prefix_best",
    "in-context gain, nats": "induction.in_context_gain",
    "step at which the best head's score rises most": "phase.prefix_best_step",
    "its rise there": "phase.prefix_best_rise",
    "step at which the gain rises most": "phase.in_context_gain_step",
    "its rise there, nats": "phase.in_context_gain_rise",
}


def result_table(result: Flat) -> Table:
    """What the best checkpoint has, and the dates of what rose, with intervals over seeds."""
    note = (
        "Loss, score and gain are of the checkpoint that config.train.best_by chose. A score is the weight on tokens "
        "that followed the same token before, in random tokens that repeat once. A gain is the loss a tenth into a row "
        "minus that at its end. Steps are in the middle between two evaluations."
    )
    return Table(title_of(result), ("", "value"), [(name, estimate(result, key)) for name, key in ROWS.items()], note)


def head_table(members: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> Table:
    """Every head's score in the best checkpoint, a column a seed: heads of two seeds have nothing in common."""
    scores = [
        {
            (layer, head): score
            for layer, heads in member["induction"]["prefix"].items()
            for head, score in heads.items()
        }
        for member in members
    ]
    rows = [(_said(layer), _said(head), *(of_seed[layer, head] for of_seed in scores)) for layer, head in scores[0]]
    return Table("Prefix-matching scores", ("layer", "head", *(f"seed {seed}" for seed in seeds)), rows, folded=True)


def learning_curves(metrics: Sequence[Mapping], result: Flat, path: Path) -> Figure:
    """Loss, the best score of each layer and the in-context gain by step, with the dates of the steepest rises."""
    layers = _names(metrics, "induction.best_of.")
    panels = {
        "nats a token": {"held-out loss": "validation.loss"},
        "prefix-matching score": {f"best of {_said(name.rpartition('.')[2])}": name for name in layers},
        "in-context gain, nats": {"gain": "induction.in_context_gain"},
    }
    dates = {"prefix-matching score": "prefix_best", "in-context gain, nats": "in_context_gain"}
    palette = colours(label for names in panels.values() for label in names)
    figure, axes = new_figure(1, len(panels), 3.6, 3.0)
    for axis, (label, names) in zip(axes[0], panels.items(), strict=True):
        draw_bands(axis, {said: learning_line(metrics, name) for said, name in names.items()}, palette)
        if label in dates:
            axis.axvline(result[f"phase.{dates[label]}_step"], color="grey", linestyle="--", linewidth=0.9)
        axis.set_xlabel("step")
        axis.set_ylabel(label)
    legend(figure, axes.flat)
    return save(
        figure,
        path,
        "By training step, means over seeds in their 95% intervals; dashed the step of the steepest rise, the mean "
        "over seeds.",
    )


def head_figure(metrics: Sequence[Mapping], seed: int, path: Path) -> Figure:
    """Every head's prefix-matching score by step, a panel a layer, of one seed."""
    names = _names(metrics, PREFIX)
    layers = list(dict.fromkeys(name.split(".")[2] for name in names))
    palette = colours(_said(name.split(".")[3]) for name in names)
    figure, axes = new_figure(1, len(layers), 4.2, 3.0, sharey=True)
    for axis, layer in zip(axes[0], layers, strict=True):
        chosen = [name for name in names if name.split(".")[2] == layer]
        draw_bands(axis, {_said(name.split(".")[3]): learning_line(metrics, name) for name in chosen}, palette)
        axis.set_title(_said(layer), fontsize=9)
        axis.set_xlabel("step")
    axes[0, 0].set_ylabel("prefix-matching score")
    legend(figure, axes[0, :1])
    return save(figure, path, f"Every head's prefix-matching score by training step, seed {seed}.")


def _names(metrics: Sequence[Mapping], start: str) -> list[str]:
    return list(dict.fromkeys(name for line in metrics for name in line if name.startswith(start)))


def _said(name: str) -> str:
    return name.replace("_", " ")
