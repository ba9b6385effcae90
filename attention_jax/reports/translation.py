"""Figures and tables of translation."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from attention_jax.reports.figures import Figure, curves, heatmaps, panel_size
from attention_jax.reports.page import Table

COLUMNS = 3
LOSS_CAPTION = "Loss by training step: in training with dropout and label smoothing, in validation without."


def attention_figure(
    weights: Sequence[Float[np.ndarray, "target source"]],
    sources: Sequence[Sequence[str]],
    targets: Sequence[Sequence[str]],
    path: Path,
) -> Figure:
    """Which source words each target word looked at, a panel a sentence, as large as the longest needs."""
    columns = min(COLUMNS, len(weights))
    rows = -(-len(weights) // columns)
    longest = [max(matrix.shape[axis] for matrix in weights) for axis in (0, 1)]
    grid = np.zeros((rows, columns, *longest))
    words: list[list[list[Sequence[str]]]] = [[[()] * columns for _ in range(rows)] for _ in range(2)]
    for place, panel in enumerate(zip(weights, sources, targets, strict=True)):
        row, col = divmod(place, columns)
        matrix, words[0][row][col], words[1][row][col] = panel
        grid[row, col, : matrix.shape[0], : matrix.shape[1]] = matrix
    return heatmaps(
        grid,
        path,
        "Attention: for each word of a translation (rows) the weight of each source word (columns).",
        key_labels=words[0],
        query_labels=words[1],
        xlabel="source",
        ylabel="translation",
        top=1.0,
        cell=(panel_size(longest[1], 3.4), panel_size(longest[0], 3.0)),
    )


def learning_figures(metrics: Sequence[dict], folder: Path) -> list[Figure]:
    """Loss and BLEU against the step, a line a seed."""
    loss = {
        f"{name.partition('.')[0]}, seed {seed}": series
        for name in ("train.loss", "validation.loss")
        for seed, series in _series(metrics, name).items()
    }
    bleu = {f"seed {seed}": series for seed, series in _series(metrics, "validation.bleu").items()}
    return [
        curves(loss, folder / "loss.png", LOSS_CAPTION, xlabel="step", ylabel="nats per target token"),
        curves(bleu, folder / "bleu.png", "Validation BLEU by training step.", xlabel="step", ylabel="BLEU"),
    ]


def length_figure(result: dict, path: Path) -> Figure:
    """BLEU of each split's sentences, in groups of about equal size, against their length."""
    series = {}
    for split in ("validation", "test"):
        groups = result.get(split, {}).get("bleu_by_length", {})
        if groups:
            series[split] = ([int(name.rpartition("-")[2]) for name in groups], list(groups.values()))
    return curves(
        series,
        path,
        "BLEU by the length of the source, in groups of about as many sentences, each at its longest.",
        xlabel="source words, at most",
        ylabel="BLEU",
    )


def result_table(result: dict[str, object], intervals: dict[str, Sequence[float]]) -> Table:
    """Every number of a flat result (a mean over seeds), with its interval over seeds where there is one."""
    rows = [
        (name, value, *(intervals.get(name) or ("", "")))
        for name, value in result.items()
        if isinstance(value, (int, float, str))
    ]
    return Table(f"Result, seeds {result['seeds']}", ("metric", "value", "95% from", "to"), rows)


def translation_table(
    split: str, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> Table:
    """Translations beside their references."""
    rows = [
        (source, hypothesis, " / ".join(group))
        for source, hypothesis, group in zip(sources, hypotheses, references, strict=True)
    ]
    return Table(f"Translations ({split})", ("source", "translation", "references"), rows)


def _series(metrics: Sequence[dict], name: str) -> dict[int, tuple[list[float], list[float]]]:
    lines = [line for line in metrics if name in line]
    return {
        seed: ([x["step"] for x in lines if x["seed"] == seed], [x[name] for x in lines if x["seed"] == seed])
        for seed in sorted({line["seed"] for line in lines})
    }
