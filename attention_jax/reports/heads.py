"""Heads at a glance: what their weights say, by layer and head, and by where the query stands."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from attention_jax.reports.figures import Figure, colours, legend, line_style, new_figure, save

PANELS = {"entropy": "entropy, nats", "distance": "distance, tokens", "first": "weight on the first key"}
POINTS = 48  # of a line, at most
CAPTION = (
    "Every head on {tokens:,} tokens of held-out text, seed {seed}: the entropy of its weights, how far from the query "
    "they lie, and how much of them is on the first token{top}. Above, means by layer and head; below, by the position "
    "of the query, means over the heads of each layer."
)
OF_PARTS = (
    " At the right, how much of the weights is on each of {parts} equal parts of a row: above, by the query's part, "
    "means over all heads; below, of queries in the last part, by layer."
)


def heads_figure(found: Mapping[str, np.ndarray], path: Path, seed: int) -> Figure:
    """Maps of layers and heads above, lines by position below, of a run's statistics; at the right, parts of rows.

    `found` has entropy, distance and first, `[rows, layers, heads, length]`, top_weights `[…, keys]`, parts `[…,
    parts]`, and positions and is_token `[rows, length]`.
    """
    panels, count = dict(PANELS), found["top_weights"].shape[-1]
    if count:
        panels["top"] = f"weight on the {count} largest"
        found = {**found, "top": found["top_weights"].sum(axis=-1)}
    figure, axes = new_figure(2, len(panels) + ("parts" in found), 4.0, 2.9)
    layers = [f"layer {layer + 1}" for layer in range(found["entropy"].shape[1])]
    palette = colours(layers)
    for (above, below), (name, label) in zip(axes.T, panels.items(), strict=False):
        _draw_map(above, by_head(found, name), label, ("head", "layer"))
        positions, means = by_position(found, name)
        for layer, line in zip(layers, means, strict=True):
            below.plot(positions, line, label=layer, linewidth=1.3, **line_style(palette, layer))
        below.set(xlabel="position of the query", ylabel=label)
        below.set_ylim(bottom=0)
        below.grid(alpha=0.3)
    legend(figure, axes[1])
    top = f" and on the {count} keys that have most of each query's" if count else ""
    caption = CAPTION.format(tokens=int(found["is_token"].sum()), top=top, seed=seed)
    if "parts" in found:  # runs of an older version have none
        caption += OF_PARTS.format(parts=found["parts"].shape[-1])
        _draw_parts(axes[:, -1], by_part(found), palette)
    return save(figure, path, caption)


def by_head(found: Mapping[str, np.ndarray], name: str) -> Float[np.ndarray, "layers heads"]:
    """The mean of a statistic over all tokens, by layer and head."""
    is_token = np.asarray(found["is_token"], np.float64)
    return np.einsum("rlht,rt->lh", np.asarray(found[name], np.float64), is_token) / is_token.sum()


def by_position(
    found: Mapping[str, np.ndarray], name: str
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, "layers points"]]:
    """Positions of queries in bins of equal width, and the mean of a statistic in each, over tokens and heads."""
    rows, times = np.nonzero(found["is_token"])
    positions = found["positions"][rows, times]
    count = min(POINTS, int(positions.max()) + 1)
    bins = positions * count // (int(positions.max()) + 1)
    of_tokens = np.asarray(found[name], np.float64).mean(axis=2)[rows, :, times]
    columns = (positions, *of_tokens.T)
    total = np.array([np.bincount(bins, column, minlength=count) for column in columns])
    sizes = np.bincount(bins, minlength=count)
    position, *means = total[:, sizes > 0] / sizes[sizes > 0]
    return position, np.array(means)


def by_part(found: Mapping[str, np.ndarray]) -> Float[np.ndarray, "layers parts parts"]:
    """The mean weight, over tokens and heads, of queries in a part of a row on keys in each; NaN where no token is."""
    rows, times = np.nonzero(found["is_token"])
    length, count = found["parts"].shape[-2:]
    of_tokens = np.asarray(found["parts"], np.float64).mean(axis=2)[rows, :, times]
    own = np.arange(count) == (times * count // length)[:, None]
    with np.errstate(invalid="ignore"):
        return np.einsum("tq,tlk->lqk", own, of_tokens) / own.sum(axis=0)[:, None]


def _draw_parts(axes: Sequence, weights: Float[np.ndarray, "layers parts parts"], palette: Mapping[str, str]) -> None:
    label, (above, below) = "weight on the part", axes
    _draw_map(above, weights.mean(axis=0), label, ("part of the keys", "part of the query"))
    for layer, of_last in zip(palette, weights[:, -1], strict=True):
        below.plot(np.arange(1, len(of_last) + 1), of_last, linewidth=1.3, **line_style(palette, layer))
    below.set(xlabel="part of the keys", ylabel=label)
    below.set_ylim(bottom=0)
    below.grid(alpha=0.3)


def _draw_map(axis, values: Float[np.ndarray, "rows columns"], label: str, names: tuple[str, str]) -> None:
    rows, columns = values.shape
    extent = (0.5, columns + 0.5, rows + 0.5, 0.5)  # layers, heads and parts count from 1
    image = axis.imshow(values, cmap="viridis", vmin=0, aspect="auto", interpolation="nearest", extent=extent)
    for own in (axis.xaxis, axis.yaxis):
        own.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.figure.colorbar(image, ax=axis, label=label)
